"""Reading of other tools' records: kernel traces of torch's profiler, its flight recorder, tables of operations.

`stream` reads a file in pieces, `events` finds the events, `decimals` converts their times to integers, `columns`
stores them, `shape_flops` and `shape_bytes` compute FLOPs and bytes from the shapes of a `recorded_call`, `collectives`
reads process groups. `kineto` combines these: a file -> a `store.traces.Trace`. `importing` makes run directories of
traces, `tables` those of tables of operations; `cards` are their manifests. `flight_recorder` reads dumps for the
analysis of hangs. Analysis of kernels is in `analysis.kernels`.
"""

from traincope.ingest.cards import Given
from traincope.ingest.flight_recorder import holds_dumps, read_dumps
from traincope.ingest.importing import find_traces, import_traces
from traincope.ingest.kineto import read_kineto
from traincope.ingest.tables.importing import import_table
from traincope.ingest.tables.reading import SUFFIXES as TABLE_SUFFIXES

__all__ = [
    "TABLE_SUFFIXES",
    "Given",
    "find_traces",
    "holds_dumps",
    "import_table",
    "import_traces",
    "read_dumps",
    "read_kineto",
]
