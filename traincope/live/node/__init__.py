"""Agent of a node: reads events as they are written, reduces finished steps to ledger rows, and applies retention.

`agent` runs the looks, `rank` and `tail` follow one rank, `ready` and `reducing` select and reduce steps,
`noticing` finds faults and a job that stands still, `retention` and `job_budget` decide which records stay. Not here:
metrics and exporters.
"""
