"""Table of faults and marks."""

from collections.abc import Iterator

import pyarrow as pa  # type: ignore[import-untyped]

from traincope.tables.sources import Sources
from traincope.tables.view import AXIS_TIME, RUN, STEP, Column, Columns, View, texts

INTEGERS, TEXTS = pa.list_(pa.int32()), pa.list_(pa.string())


def _faults(sources: Sources) -> Iterator[Columns]:
    faults = sources.analysis.faults
    yield {
        "fault": list(range(len(faults))),
        "kind": texts(fault.kind.value for fault in faults),
        "mark": [fault.is_mark for fault in faults],
        "at_ns": pa.array([fault.at_ns for fault in faults], pa.int64()),
        "ranks": pa.array([list(fault.ranks) for fault in faults], INTEGERS),
        "step": pa.array([fault.step for fault in faults], pa.int64()),
        "attempt": pa.array([fault.attempt for fault in faults], pa.int32()),
        "training_step": pa.array([fault.training_step for fault in faults], pa.int64()),
        "what": texts(fault.what for fault in faults),
        "evidence": texts(fault.evidence for fault in faults),
        "confidence": texts(fault.confidence for fault in faults),
        "lasted_ns": pa.array([fault.lasted_ns for fault in faults], pa.int64()),
        "follows": [fault.follows for fault in faults],
        "traceback": pa.array([texts(fault.traceback).to_pylist() for fault in faults], TEXTS),
    }


FAULTS_VIEW = View(
    name="faults",
    row="one fault or mark of the job, in order of time",
    columns=(
        RUN,
        Column("fault", type=pa.int32(), help="position in the report's list, from 0", nullable=False),
        Column("kind", type=pa.string(), help="kind, as in docs/findings", nullable=False),
        Column("mark", type=pa.bool_(), help="context for faults: a checkpoint, an evaluation, ...", nullable=False),
        Column("at_ns", type=pa.int64(), unit="ns", help=AXIS_TIME, nullable=False),
        Column("ranks", type=INTEGERS, help="ranks; empty: the job as a whole", nullable=False),
        STEP,
        Column("attempt", type=pa.int32(), help="number of its attempt"),
        Column("training_step", type=pa.int64(), help="the step's number over all attempts, if there are several"),
        Column("what", type=pa.string(), help="a phrase", nullable=False),
        Column("evidence", type=pa.string(), help="why we know; may be empty", nullable=False),
        Column("confidence", type=pa.string(), help="`high`, `medium` or `unknown`", nullable=False),
        Column(
            "lasted_ns",
            type=pa.int64(),
            unit="ns",
            help="duration of entries that have one, on the rank where it is longest",
        ),
        Column("follows", type=pa.bool_(), help="an end after another rank's, perhaps its consequence", nullable=False),
        Column("traceback", type=TEXTS, help="frames of an exception, innermost last", nullable=False),
    ),
    make=_faults,
)
