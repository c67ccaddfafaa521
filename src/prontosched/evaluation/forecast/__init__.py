"""The paper's section on predicting CPU Ready, for `pronto forecast`.

In the order of the work: `load` fills a `panel` from traces or from the generated data set; `study` lays out
`values` (methods, similar nodes in `neighbours`) and `alarms` as tasks; `tables`, `answers` and `figures` say
what came out, beside what the paper printed (`published`); `report` writes it down.
"""
