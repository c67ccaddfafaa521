"""Stage 7: decision to schedulers.

`gate` has the protocol that every scheduler's gate implements, and the values it uses.
`controller` carries one node's rank and verdicts to a gate: `policy` decides when and for
how many nodes, `preference` has the levels, `sweep` undoes our marks. The gates are `slurm`,
`kubernetes` (client in `kubernetes_client`), `htcondor` and `hook`; `registry` finds them by
name. `dask`, `lsf` and the Kubernetes scheduler `extender` are asked by their schedulers;
`agent_client` fetches decisions for them.
"""
