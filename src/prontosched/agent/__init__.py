"""The live process: source → node → decision, every interval, and the answers to whoever asks.

`config` puts an agent together from its settings and `loop` runs it: `reader` reads the source,
`nodes` holds the nodes, `answer` weighs a decision with its age and the `jobs` on their way, and
`record` counts what decisions were worth. Told of every timestep are `gate`, `federation`, `probe`,
`systemd` and `logs`. `explain` and `status` show what is known, `offenders` who waits and who runs,
`report` what happened over days, `diagnosis` what is wrong on the machine.
`store` is what survives a restart, `http` the port. `standalone` decides without an agent.
Alone in asking the time.

Does not cover: the decision itself (`prontosched.pipeline.node`), schedulers
(`prontosched.gates`), pages for a browser (`prontosched.dashboard`).
"""
