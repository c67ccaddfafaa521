"""Stage 7: decision to schedulers.

`gate` says what a scheduler must let us do, and the rules that every gate keeps.
`preference` has the rules between nodes: which to prefer, and which may be closed.
`keeper` carries one node's rank and verdicts there: `policy` decides when, `floor` whether
others leave room, `shadow` stands in until enforcing is asked for. `sweep` undoes what is
ours. The schedulers themselves are `slurm`, `slurm_feature`, `kubernetes` and its
`extender`, `htcondor`, `lsf`, `dask` and `hook`; `registry` finds gates by name.
"""
