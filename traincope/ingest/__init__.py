"""Reading of other tools' records: kernel traces of torch's profiler, its flight recorder, tables, logbooks.

`traces` reads a kernel trace, `tables` a table of operations. `importing` makes run directories of traces,
`tables.importing` those of tables, `memory_snapshots` those of torch's allocator, and `logbooks` those of lists of
interruptions; `cards` are their manifests.
`flight_recorder` reads dumps for the analysis of hangs. Analysis of kernels is in `analysis.kernels`.
"""

from traincope.ingest.cards import Given
from traincope.ingest.flight_recorder import holds_dumps, may_hold_dumps, read_dumps
from traincope.ingest.importing import find_traces, holds_traces, import_traces
from traincope.ingest.logbooks import import_logbook
from traincope.ingest.memory_snapshots import find_snapshots, import_snapshots
from traincope.ingest.tables.importing import import_table
from traincope.ingest.tables.reading import SUFFIXES as TABLE_SUFFIXES
from traincope.ingest.traces.kineto import read_kineto

__all__ = [
    "TABLE_SUFFIXES",
    "Given",
    "find_snapshots",
    "find_traces",
    "holds_dumps",
    "holds_traces",
    "import_logbook",
    "import_snapshots",
    "import_table",
    "import_traces",
    "may_hold_dumps",
    "read_dumps",
    "read_kineto",
]
