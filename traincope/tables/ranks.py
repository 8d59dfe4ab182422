"""Table of ranks: place, end, clock, and sums over the counted steps."""

import json
from collections.abc import Iterator

import pyarrow as pa  # type: ignore[import-untyped]

from traincope.tables.sources import Sources
from traincope.tables.view import AXIS_TIME, RANK, RUN, Column, Columns, View, texts

SUM = "sum over the counted steps"


def _ranks(sources: Sources) -> Iterator[Columns]:
    run, timeline = sources.timeline.run, sources.timeline
    records = {rank.rank: rank for rank in run.ranks}
    timelines, clocks = {rank.rank: rank for rank in timeline.ranks}, {clock.rank: clock for clock in timeline.clocks}
    ledgers = {rank.rank: rank for rank in sources.analysis.ledger.ranks}
    waits = {rank.rank: rank for rank in sources.analysis.stragglers.ranks}
    numbers = sorted({*records, *run.missing})
    known = [records.get(number) for number in numbers]
    ledger, wait = [ledgers.get(number) for number in numbers], [waits.get(number) for number in numbers]
    clock, line = [clocks.get(number) for number in numbers], [timelines.get(number) for number in numbers]
    yield {
        "rank": numbers,
        "recorded": [rank is not None for rank in known],
        "host": texts(None if rank is None else rank.info.host.name for rank in known),
        "device": texts(None if rank is None else _device(rank.info.device.get("name")) for rank in known),
        "coords": texts(None if rank is None else json.dumps(rank.info.coord.coords) for rank in known),
        "stage": [None if rank is None else rank.stage for rank in line],
        "ending": texts(None if rank is None else rank.info.ending for rank in known),
        "last_ns": [None if rank is None else rank.last_ns for rank in line],
        "steps": [None if rank is None else len(rank.numbers) for rank in ledger],
        "counted_steps": [None if rank is None else rank.num_counted for rank in ledger],
        "wall_ns": [None if rank is None else rank.total_wall_ns for rank in ledger],
        "compute_ns": [None if rank is None else rank.compute_ns for rank in wait],
        "wait_ns": [None if rank is None else rank.own_wait_ns for rank in wait],
        "straggler_wait_ns": [None if rank is None else rank.straggler_wait_ns for rank in wait],
        "events": [None if rank is None else sum(len(segment.records) for segment in rank.segments) for rank in known],
        "dropped": [None if rank is None else rank.dropped for rank in known],
        "clock_offset_ns": [None if rank is None else rank.offset_ns for rank in clock],
        "clock_bound_ns": [None if rank is None else rank.bound_ns for rank in clock],
        "clock_drift_ppm": [None if rank is None else rank.drift_ppm for rank in clock],
    }


def _device(name: object) -> str | None:
    return name if isinstance(name, str) else None


RANKS_VIEW = View(
    name="ranks",
    row="one rank of the last attempt, also one without records",
    columns=(
        RUN,
        RANK,
        Column("recorded", type=pa.bool_(), help="the rank has a directory in the run", nullable=False),
        Column("host", type=pa.string(), help="name of the host"),
        Column("device", type=pa.string(), help="name of the accelerator or processor"),
        Column("coords", type=pa.string(), help="position on each mesh axis, as JSON"),
        Column("stage", type=pa.int32(), help="position on the pipeline's axis"),
        Column("ending", type=pa.string(), help="`clean` or the name of an exception; null: no end is recorded"),
        Column("last_ns", type=pa.int64(), unit="ns", help=f"last recorded instant; {AXIS_TIME}"),
        Column("steps", type=pa.int64(), help="number of complete steps"),
        Column("counted_steps", type=pa.int64(), help="number of counted steps"),
        Column("wall_ns", type=pa.int64(), unit="ns", help=f"wall time of steps: {SUM}"),
        Column("compute_ns", type=pa.int64(), unit="ns", help=f"compute: {SUM}"),
        Column("wait_ns", type=pa.int64(), unit="ns", help=f"exposed wait for other ranks: {SUM}"),
        Column(
            "straggler_wait_ns", type=pa.int64(), unit="ns", help=f"exposed wait of other ranks for this one: {SUM}"
        ),
        Column("events", type=pa.int64(), help="number of records"),
        Column("dropped", type=pa.int64(), help="number of dropped records"),
        Column("clock_offset_ns", type=pa.int64(), unit="ns", help="time on the axis - the rank's monotonic clock"),
        Column(
            "clock_bound_ns",
            type=pa.int64(),
            unit="ns",
            help="largest error of the rank's times against the first rank's; null: no bound is known",
        ),
        Column("clock_drift_ppm", type=pa.float64(), unit="ppm", help="rate of the axis over the rank's clock"),
    ),
    make=_ranks,
)
