"""A cluster in a loop with its signals: what refusing does to the jobs.

`cluster` moves jobs and hidden tenants through time, `sensors` shows their state as
telemetry, `placers` choose nodes, `rules` refuse, `run` closes the loop and `study`
compares placers and rules over seeds. The model and what it leaves out are on one
page, `docs/simulation.md`.
"""
