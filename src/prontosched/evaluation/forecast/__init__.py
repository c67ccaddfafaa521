"""The paper's section on predicting CPU Ready, for `pronto forecast`.

In the order of the work: `panel` cuts traces or the generated data set into windows; `study` lays out values and
alarms of the `models` as tasks and does them; `answers` says what came out, beside what the paper printed
(`paper_tables`); `report` writes it down.
"""
