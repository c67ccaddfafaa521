"""Stage 7: decision to schedulers.

`gate` says what a scheduler must let us do, and the rules that every gate keeps.
`keeper` carries one node's verdicts there: `policy` decides when, `floor` how many may
refuse at once, `shadow` stands in until enforcing is asked for. `sweep` undoes what is
ours. The schedulers themselves are `slurm`, `slurm_feature`, `kubernetes` and its
`extender`, `htcondor`, `dask` and `hook`; `registry` finds them by name.
"""
