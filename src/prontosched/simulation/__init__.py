"""A cluster in a loop with its signals: what preferring and refusing nodes does to the jobs.

`jobs` and `tenants` draw what will come, `background` reads it from traces, `cluster` moves
it through time, `sensors` shows its state as telemetry, `rules` speak for the nodes (`gate`
applies what gates do), `placers` choose, `run` closes the loop, `study` compares over seeds,
and `goals`, `report` and `figure` say what came of it. The model and what it leaves out are
on one page, `docs/simulation.md`.
"""
