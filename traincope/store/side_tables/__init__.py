"""Tables next to the records: ledger rows, and what an import brings.

`rows` are written by the node's agent, and `row_thinning` makes those of one hour into one. `operations`, `traces` and
`memory_snapshots` hold imported tables of operations, kernel traces and snapshots of torch's allocator.

Not here: records of events (`segments`), and files about the job as a whole (`job`).
"""
