"""Other tools' evidence -> run directory: kernel traces of torch's profiler (Kineto).

`stream` reads a file in pieces, `events` finds the events in them, `decimals` makes their times integers,
`columns` puts them side by side, `products` knows the FLOPs of recorded shapes; `kineto` is the whole of it, from a
file to a `store.traces.Trace`, and `importing` makes run directories of such.
"""

from traincope.ingest.importing import import_traces
from traincope.ingest.kineto import read_kineto

__all__ = ["import_traces", "read_kineto"]
