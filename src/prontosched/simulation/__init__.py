"""A cluster in a loop with its signals: what preferring and refusing nodes does to the jobs.

`tenants` draws or reads the load that no scheduler placed; `cluster` draws the jobs, moves both through time and
shows the nodes as telemetry; `rules` decide for the nodes, `placers` choose one for a job, `run` closes the loop;
`study` compares over seeds and has the goals, `report` says what came of it. The model and what it leaves out are on
one page, `docs/simulation.md`.
"""
