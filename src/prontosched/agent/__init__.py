"""The live process: source → node → decision, every interval, and the answers to whoever asks.

Covers: the loop and its cadence (`loop`, `pace`, `reading`), what it decides for
(`nodes`, `schema`), jobs announced before telemetry shows them (`jobs`), what
survives a restart (`state`, `decision_log`), and HTTP (`api`, `access`, `openapi`,
`exposition`). Alone in asking the time.

Does not cover: the decision itself (`prontosched.pipeline.node`), schedulers
(`prontosched.gates`), pages for a browser (`prontosched.dashboard`).
"""
