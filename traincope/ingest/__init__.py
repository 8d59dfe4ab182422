"""Reading of other tools' records: kernel traces of torch's profiler (Kineto), dumps of torch's flight recorder.

`stream` reads a file in pieces, `events` finds the events, `decimals` converts their times to integers, `columns`
stores them, `shape_flops` and `shape_bytes` compute FLOPs and bytes from the shapes of a `recorded_call`, `collectives`
reads process groups. `kineto` combines these: a file -> a `store.traces.Trace`. `importing` makes run directories of
traces. `flight_recorder` reads dumps for the analysis of hangs. Analysis of kernels is in `analysis.kernels`.
"""

from traincope.ingest.flight_recorder import holds_dumps, read_dumps
from traincope.ingest.importing import Given, find_traces, import_traces
from traincope.ingest.kineto import read_kineto

__all__ = ["Given", "find_traces", "holds_dumps", "import_traces", "read_dumps", "read_kineto"]
