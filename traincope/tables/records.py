"""Tables of single events: all records, and among them the spans and the measured values."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from traincope.events import GPU_ENERGY, GPU_SAMPLE_UNITS, NO_PEER, NO_STEP, OPEN, Flag, Kind, Phase
from traincope.tables.sources import Sources
from traincope.tables.view import AXIS_TIME, RANK, RUN, STEP, WORDS, Column, Columns, View, same, texts, words
from traincope.timeline import RankTimeline

Details = Mapping[int, Mapping[str, Any]]
Records = NDArray[np.void]

ROWS_PER_PART = 1 << 20
"""Most rows of one part of a table."""

THREAD = Column("thread", type=WORDS, help="thread of the process; `main` trains", nullable=False)
START = Column("start_ns", type=pa.int64(), unit="ns", help=AXIS_TIME, nullable=False)
END = Column("end_ns", type=pa.int64(), unit="ns", help=f"{AXIS_TIME}; null: no end is recorded")
DURATION = Column("duration_ns", type=pa.int64(), unit="ns", help="end - start; null: an instant, or no end")
PHASE = Column("phase", type=WORDS, help="phase of the training; null: none")

RECORD_COLUMNS = (
    THREAD,
    Column("kind", type=WORDS, help="kind of the event (`traincope.events`)", nullable=False),
    START,
    END,
    DURATION,
    STEP,
    PHASE,
    Column("name", type=WORDS, help="operation, action, span, event, measure or logged name"),
    Column("axis", type=WORDS, help="mesh axis of a collective or stall"),
    Column("group", type=WORDS, help="process group of a collective or stall"),
    Column("sequence", type=pa.int64(), help="count of the collective on its group; microbatch of an action"),
    Column("window", type=pa.int64(), help="first step of the window in which counts began"),
    Column("peer", type=pa.int32(), help="root or other rank of a collective or message; stage of an action"),
    Column("tag", type=pa.int32(), help="tag of a message, and other numbers by kind"),
    Column("flags", type=pa.uint16(), help="bits of `traincope.events.Flag`", nullable=False),
    Column("schedule", type=WORDS, help="pipeline schedule of an action"),
    Column("value", type=pa.int64(), help="bytes, FLOPs or another number by kind"),
    Column("scalar", type=pa.float64(), help="value of `run.log()`"),
    Column("details", type=pa.string(), help="details of an event as JSON"),
)
"""Columns of one rank's events, which the Parquet export writes too."""

NAMED = (
    Kind.PHASE,
    Kind.ACTION,
    Kind.COLLECTIVE,
    Kind.STALL,
    Kind.SPAN,
    Kind.EVENT,
    Kind.SCALAR,
    Kind.MEMORY,
    Kind.FLOPS,
    Kind.GPU,
    Kind.USAGE,
)
ON_GROUP = (Kind.COLLECTIVE, Kind.STALL)
COUNTED = (*ON_GROUP, Kind.ACTION)
TAGGED = (*ON_GROUP, Kind.FLOPS)
VALUED = (*ON_GROUP, Kind.STEP, Kind.CLOCK, Kind.DROPPED, Kind.MEMORY, Kind.FLOPS, Kind.GPU, Kind.USAGE)
INSTANTS = (Kind.EVENT, Kind.CLOCK, Kind.DROPPED, Kind.SCALAR, Kind.MEMORY, Kind.FLOPS, Kind.GPU, Kind.USAGE)
"""Kinds without a length."""
SPANS = (Kind.PHASE, Kind.ACTION, Kind.SPAN, Kind.STALL)
MEASURED = (Kind.SCALAR, Kind.MEMORY, Kind.GPU)
SOURCES: Mapping[int, str] = {Kind.SCALAR: "logged", Kind.MEMORY: "memory", Kind.GPU: "gpu"}
"""Kinds of measured values -> the word for them."""
GPU_UNITS = GPU_SAMPLE_UNITS | {GPU_ENERGY: "mJ"}
UNITS = ("bytes", *dict.fromkeys(GPU_UNITS.values()))
CLOCKS = ("host", "device")


def rank_records(rank: RankTimeline, *, details: Details) -> Iterator[Columns]:
    """Arrays of `RECORD_COLUMNS`, thread by thread, in order of start. `details`: event number -> details."""
    for thread, records in rank.threads.items():
        for first in range(0, len(records), ROWS_PER_PART):
            yield _columns(rank, thread, records[first : first + ROWS_PER_PART], details=details)


def _records(sources: Sources) -> Iterator[Columns]:
    details = {rank.rank: rank.details for rank in sources.timeline.run.ranks}
    for rank in sources.timeline.ranks:
        for columns in rank_records(rank, details=details[rank.rank]):
            yield {"rank": _ranks(rank, columns["flags"]), **columns}


def _spans(sources: Sources) -> Iterator[Columns]:
    for rank, thread, records in _chosen(sources, SPANS):
        action = records["kind"] == Kind.ACTION
        yield {
            "rank": _ranks(rank, records),
            "thread": same(thread, len(records)),
            **_times(records),
            **_named(rank, records),
            "step": _steps(records),
            "stage": pa.array(records["peer"], mask=~action),
            "microbatch": pa.array(records["sequence"], mask=~action),
            "clock": words((records["flags"] & Flag.DEVICE > 0).astype(np.int32), CLOCKS),
        }


def _metrics(sources: Sources) -> Iterator[Columns]:
    for rank, _, records in _chosen(sources, MEASURED):
        kind, values = records["kind"], np.ascontiguousarray(records["value"])
        named = _named(rank, records)
        yield {
            "rank": _ranks(rank, records),
            "at_ns": records["start_ns"],
            "step": _steps(records),
            "phase": named["phase"],
            "source": words(kind, [SOURCES.get(number, "") for number in range(max(Kind) + 1)]),
            "name": named["name"],
            "value": np.where(kind == Kind.SCALAR, values.view(np.float64), values.astype(np.float64)),
            "unit": _units(rank, records),
        }


def _units(rank: RankTimeline, records: Records) -> pa.Array:
    """Unit of each measured value; null for logged ones and unknown names."""
    of_name = np.array([UNITS.index(GPU_UNITS[name]) if name in GPU_UNITS else -1 for name in (*rank.names, "")])
    of_gpu = of_name[np.minimum(records["name"], len(rank.names))]
    kind = records["kind"]
    return words(np.where(kind == Kind.MEMORY, 0, np.where(kind == Kind.GPU, of_gpu, -1)), UNITS)


def _chosen(sources: Sources, kinds: Sequence[Kind]) -> Iterator[tuple[RankTimeline, str, Records]]:
    """Records of these kinds, thread by thread."""
    for rank in sources.timeline.ranks:
        for thread, records in rank.threads.items():
            chosen = records[np.isin(records["kind"], kinds)]
            if len(chosen):
                yield rank, thread, chosen


def _columns(rank: RankTimeline, thread: str, records: Records, *, details: Details) -> Columns:
    return {
        "thread": same(thread, len(records)),
        "flags": records["flags"],
        **_times(records),
        **_named(rank, records),
        **_numbers(records),
        "step": _steps(records),
        "details": _details(records, details),
    }


def _ranks(rank: RankTimeline, rows: NDArray[Any]) -> NDArray[np.int32]:
    return np.full(len(rows), rank.rank, dtype=np.int32)


def _steps(records: Records) -> pa.Array:
    return pa.array(records["step"], mask=records["step"] == NO_STEP)


def _times(records: Records) -> Columns:
    start, end = records["start_ns"], records["end_ns"]
    still_open, instant = end == OPEN, np.isin(records["kind"], INSTANTS)
    return {
        "start_ns": start,
        "end_ns": pa.array(end, mask=still_open),
        "duration_ns": pa.array(end - start, mask=still_open | instant),
    }


def _named(rank: RankTimeline, records: Records) -> Columns:
    kind, phase = records["kind"], records["phase"]
    named, grouped = np.isin(kind, NAMED), np.isin(kind, ON_GROUP)
    return {
        "kind": words(kind, _lower(Kind)),
        "phase": words(phase, _lower(Phase), present=phase != Phase.NONE),
        "name": words(records["name"], rank.names, present=named),
        "axis": words(records["group"], [group.axis for group in rank.groups], present=grouped),
        "group": words(records["group"], [group.key for group in rank.groups], present=grouped),
        "schedule": words(records["group"], rank.names, present=kind == Kind.ACTION),
    }


def _numbers(records: Records) -> Columns:
    kind, peer, value = (records[name] for name in ("kind", "peer", "value"))
    logged, counted = kind == Kind.SCALAR, np.isin(kind, COUNTED)
    return {
        "sequence": pa.array(records["sequence"], mask=~counted),
        "window": pa.array(records["window"], mask=~np.isin(kind, ON_GROUP)),
        "peer": pa.array(peer, mask=~counted | (peer == NO_PEER)),
        "tag": pa.array(records["tag"], mask=~np.isin(kind, TAGGED)),
        "value": pa.array(value, mask=~np.isin(kind, VALUED)),
        "scalar": pa.array(np.ascontiguousarray(value).view(np.float64), mask=~logged),
    }


def _details(records: Records, details: Details) -> pa.Array:
    rows: list[str | None] = [None] * len(records)
    for row in np.flatnonzero(records["kind"] == Kind.EVENT).tolist():
        event_details = details.get(int(records["group"][row]))
        rows[row] = None if event_details is None else json.dumps(event_details, sort_keys=True, default=str)
    return texts(rows)


def _lower(names: type[Kind] | type[Phase]) -> list[str]:
    """Lower-case names by number."""
    return [names(number).name.lower() if number in list(names) else "" for number in range(max(names) + 1)]


SPANS_VIEW = View(
    name="spans",
    row="one interval of a thread: a phase, a pipeline action, a span of the training, or a stall",
    columns=(
        RUN,
        RANK,
        STEP,
        THREAD,
        Column("kind", type=WORDS, help="`phase`, `action`, `span` or `stall`", nullable=False),
        Column("name", type=WORDS, help="what ran; of a stall the operation"),
        PHASE,
        Column("axis", type=WORDS, help="mesh axis of a stall"),
        Column("stage", type=pa.int32(), help="pipeline stage of an action"),
        Column("microbatch", type=pa.int64(), help="microbatch of an action"),
        Column("schedule", type=WORDS, help="pipeline schedule of an action"),
        Column("clock", type=WORDS, help="the clock that measured it: `host` or `device`", nullable=False),
        START,
        END,
        DURATION,
    ),
    make=_spans,
)

METRICS_VIEW = View(
    name="metrics",
    row="one measured or logged value",
    columns=(
        RUN,
        RANK,
        STEP,
        Column("phase", type=WORDS, help="the phase that had just ended, of memory; null: the step had ended"),
        Column("at_ns", type=pa.int64(), unit="ns", help=AXIS_TIME, nullable=False),
        Column("source", type=WORDS, help="`logged` (`run.log()`), `memory` or `gpu`", nullable=False),
        Column("name", type=WORDS, help="name of the value"),
        Column("value", type=pa.float64(), unit="`unit`", help="the value; it may be NaN", nullable=False),
        Column("unit", type=WORDS, help="unit of the value; null: logged, so unknown"),
    ),
    make=_metrics,
)

RECORDS_VIEW = View(
    name="records",
    row="one event, as the Parquet export writes it",
    columns=(RUN, RANK, *RECORD_COLUMNS),
    make=_records,
)
