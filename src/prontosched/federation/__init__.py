"""Stage 6: nodes to one global view, without sharing telemetry.

What a node uses: `member` (publish and adopt), over a `link` (`nats` between machines, by its
`address`). What an aggregator uses: `service` around `aggregator` and `pooling`, with `leases`.
What travels: `message`, `schema`, sent by `publisher` along the `tree`. Who looks: `monitor`.
"""
