"""The same node, on traces: how right is a signal.

In the order of the work: `inputs` cuts traces (`datasets`, `generators`) into parts; `evaluate` spreads them over
workers; `replay` streams a part through all `methods` (`scorers`, `subspaces`, `competitors`) against the `truth`;
`record` keeps the counts of `measures` and works out the results of each node; `study` puts all nodes together, with
`nulls` and intervals; `verdict` says what the numbers mean; `report` and `figures` show them. `forecast` is the paper's
study of predicting CPU Ready.
"""
