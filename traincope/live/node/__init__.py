"""Agent of a node: reads events as they are written, reduces finished steps to ledger rows, and applies retention.

`agent` runs the looks, `rank` and `tail` follow one rank, `ready` and `reducing` select and reduce steps,
`anomaly_windows` requests detail after a fault, `watchdog` looks at a job that stands still. Not here: metrics and
exporters.
"""
