"""The live process: source → node → decision, every interval, and the answers to whoever asks.

`config` puts an agent together from its settings. `loop` runs it at the `pace` of its interval: it reads the source on
a `background` thread and steps the `nodes`, which answer with the age of their decisions and the `jobs` on their way.
`schema` keeps a node's metrics in order, `record` counts what decisions were worth. Told of every timestep are
`followers` (gate, probe, service manager, log of changes) and `federation`. `views` shows what is known and why,
`offenders` who waits and who runs, `report` what happened over days, `diagnosis` what is wrong on the machine; `logs`
is the form of a line. `store` is what survives a restart, `http` the port. `standalone` watches for a few seconds where
no agent runs. Only this package asks the time.

Does not cover: the decision itself (`prontosched.pipeline.node`), schedulers (`prontosched.gates`), pages for a
browser (`prontosched.dashboard`).
"""
