"""Reading of a kernel trace of torch's profiler.

`stream` reads a file in pieces, `events` finds the events, `decimals` converts their times to integers, `columns`
stores them, `shape_flops` and `shape_bytes` compute FLOPs and bytes from the shapes of a `recorded_call`, `collectives`
reads process groups. `kineto` combines these: a file -> a `store.traces.Trace`.
"""
