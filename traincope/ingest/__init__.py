"""Import of other tools' records: kernel traces of torch's profiler (Kineto) -> run directory.

`stream` reads a file in pieces, `events` finds the events, `decimals` converts their times to integers, `columns`
stores them, `matmul_flops` computes FLOPs from recorded shapes. `kineto` combines these: a file -> a
`store.traces.Trace`. `importing` makes run directories of traces. Analysis of kernels is in `analysis.kernels`.
"""

from traincope.ingest.importing import import_traces
from traincope.ingest.kineto import read_kineto

__all__ = ["import_traces", "read_kineto"]
