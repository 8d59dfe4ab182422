"""A timeline cut up for zooming: `store.tiles` written rank by rank, so that only one rank is held twice."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.kernel_classes import Family, kernel_class
from traincope.analysis.lanes import ACTIVITY, Book, Lane, lanes
from traincope.analysis.terms import exposed_transfer, exposed_wait
from traincope.events import Flag, Kind
from traincope.store.tiles import NOTHING, SPAN_DTYPE, WHOLE, GroupOf, Header, Level, Row, TilesWriter
from traincope.store.traces import MEMORY, Trace
from traincope.timeline import Instances, RankTimeline, Timeline
from traincope.timeline.painting import nesting, painted
from traincope.timeline.raster import covered

Ints = NDArray[np.int64]

COARSEST_BINS, FINER = 1024, 4
"""Bins of the first level, and how many of the next lie in each."""
WINDOW_BINS = 512
"""The least that are drawn of a window."""
MOST_PIECES = 4_000_000
"""That a window without a level may hold, over all rows, to be drawn in time."""
LONGEST_NAME = 1000
OWNING = (Kind.PHASE, Kind.ACTION, Kind.STALL)
GPU_CLASSES = {Family.COMMUNICATION: "gpu communication", Family.COMPUTE: "gpu compute"}
GPU_MEMORY, GPU_OTHER = "gpu memory", "gpu other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """Of one row: disjoint, in order."""

    starts: Ints
    ends: Ints
    classes: NDArray[np.uint8]
    owners: NDArray[np.int32]


@dataclass(slots=True, kw_only=True)
class _Written:
    """How far the columns are."""

    writer: TilesWriter
    origin_ns: int
    levels: tuple[Level, ...]
    rows: list[Row] = field(default_factory=list)
    spans: int = 0
    pieces: int = 0
    channels: int = 0

    def add(self, rank: int, lane: str, spans: NDArray[np.void], pieces: Pieces, *, lines: int) -> None:
        present = np.unique(pieces.classes)
        row = Row(
            rank=rank,
            lane=lane,
            lines=lines,
            first_span=self.spans,
            num_spans=len(spans),
            first_piece=self.pieces,
            num_pieces=len(pieces.starts),
            first_channel=self.channels,
            classes=tuple(present.tolist()),
        )
        self.rows.append(row)
        own = spans.copy()
        own["start_ns"] -= self.origin_ns
        own["end_ns"] -= self.origin_ns
        starts, ends = pieces.starts - self.origin_ns, pieces.ends - self.origin_ns
        columns: dict[str, NDArray[Any]] = {
            "spans": own,
            "starts": starts,
            "ends": ends,
            "classes": pieces.classes,
            "owners": pieces.owners,
        }
        for column, values in columns.items():
            self.writer.append(column, values)
        channel = np.searchsorted(present, pieces.classes)
        for at, level in enumerate(self.levels):
            sums = covered(
                starts, ends, channel, num_channels=len(present), begin_ns=0, width_ns=level.width_ns, bins=level.bins
            )
            self.writer.append(f"level-{at}", np.rint(sums * (WHOLE / level.width_ns)).astype(np.uint16))
        self.spans += len(spans)
        self.pieces += len(pieces.starts)
        self.channels += len(present)


def write_tiles(timeline: Timeline, instances: Instances, writer: TilesWriter) -> None:
    """Everything but `finish`ed: the caller may add to the directory first. Returns nothing; see `header_of`."""
    origin_ns, end_ns = _extent(timeline)
    book = Book()
    num_records = sum(len(records) for rank in timeline.ranks for records in rank.threads.values())
    out = _Written(writer=writer, origin_ns=origin_ns, levels=levels(end_ns - origin_ns, num_pieces=2 * num_records))
    for rank in timeline.ranks:
        _write_rank(rank, instances, book, out)
    for number, traces in timeline.traces.ranks.items():
        for trace in traces:
            _write_trace(number, trace, book, out)
    writer.finish(
        Header(
            origin_ns=origin_ns,
            length_ns=end_ns - origin_ns,
            rows=tuple(out.rows),
            classes=tuple(book.classes.numbers)[: book.classes.most],
            names=tuple(name[:LONGEST_NAME] for name in book.names.numbers),
            groups=tuple(GroupOf(axis=axis, key=key, ranks=ranks) for axis, key, ranks in book.groups),
            levels=out.levels,
            steps=tuple(_steps(timeline, origin_ns)),
            bounds_ns={clock.rank: clock.bound_ns for clock in timeline.clocks},
            hosts={clock.rank: clock.host for clock in timeline.clocks},
            missing=tuple(timeline.run.missing),
        )
    )


def levels(length_ns: int, *, num_pieces: int) -> tuple[Level, ...]:
    """None where any window's pieces are few enough as they are."""
    found = []
    bins, held = COARSEST_BINS, num_pieces
    while held > MOST_PIECES:
        width_ns = max(-(-length_ns // bins), 1)
        found.append(Level(width_ns=width_ns, bins=bins))
        held = num_pieces * WINDOW_BINS // bins
        bins *= FINER
    return tuple(found)


def _extent(timeline: Timeline) -> tuple[int, int]:
    """From the first instant of any record or kernel to the last."""
    traces = [trace for found in timeline.traces.ranks.values() for trace in found if len(trace)]
    starts = [int(rank.main["start_ns"].min()) for rank in timeline.ranks if len(rank.main)]
    starts += [int(trace.start_ns.min()) for trace in traces]
    ends = [rank.last_ns for rank in timeline.ranks] + [int(trace.end_ns.max()) for trace in traces]
    return (min(starts), max(ends)) if starts else (timeline.run.info.started_wall_ns,) * 2


def _steps(timeline: Timeline, origin_ns: int) -> Iterator[tuple[int, int, int]]:
    borders: dict[int, tuple[int, int]] = {}
    for rank in timeline.ranks:
        for step in rank.steps:
            start, end = borders.get(step.number, (step.start_ns, step.end_ns))
            borders[step.number] = (min(start, step.start_ns), max(end, step.end_ns))
    for number in sorted(borders):
        start, end = borders[number]
        yield number, start - origin_ns, end - origin_ns


def _write_rank(rank: RankTimeline, instances: Instances, book: Book, out: _Written) -> None:
    of_record = np.full(len(rank.main), NOTHING, dtype=np.int32)
    first, seen = out.spans, 0
    found: list[NDArray[np.void]] = []
    for lane in lanes(rank, instances, book):
        told = lane.records != NOTHING
        of_record[lane.records[told]] = first + seen + np.flatnonzero(told)
        seen += len(lane.spans)
        found.append(lane.spans)
        _write_lane(rank.rank, lane, book, out)
    spans = np.concatenate(found) if found else np.empty(0, dtype=SPAN_DTYPE)
    owning = np.isin(rank.main["kind"], OWNING) & (rank.main["flags"] & Flag.DEVICE == 0) & (of_record != NOTHING)
    at = of_record[owning] - first
    if len(at):
        pieces = _pieces(spans[at], book, owners=at + first)
        out.add(rank.rank, ACTIVITY, np.empty(0, dtype=SPAN_DTYPE), pieces, lines=1)


def _write_lane(rank: int, lane: Lane, book: Book, out: _Written) -> None:
    spans = lane.spans
    nested = nesting(spans["start_ns"], spans["end_ns"])
    spans["depth"] = np.minimum(nested.depth, 255)
    spans["parent"] = np.where(nested.parent == NOTHING, NOTHING, nested.parent + out.spans)
    owners = np.arange(out.spans, out.spans + len(spans), dtype=np.int32)
    lines = int(spans["depth"].max(initial=0)) + 1
    out.add(rank, lane.name, spans, _pieces(spans, book, owners=owners), lines=lines)


def _pieces(spans: NDArray[np.void], book: Book, *, owners: NDArray[np.int32]) -> Pieces:
    """What is waiting of a stall is painted apart from its transfer."""
    starts, ends, of = spans["start_ns"].copy(), spans["end_ns"], spans["of"]
    waited = np.flatnonzero((spans["kind"] == Kind.STALL) & (spans["wait_ns"] > 0))
    waits_from, waits_to = starts[waited], starts[waited] + spans["wait_ns"][waited]
    starts[waited] = waits_to
    all_starts, all_ends = np.concatenate([starts, waits_from]), np.concatenate([ends, waits_to])
    classes = np.concatenate([of, _waiting(book)[of[waited]]])
    owner = np.concatenate([owners, owners[waited]])
    order = np.lexsort((-all_ends, all_starts))
    found = painted(all_starts[order], all_ends[order])
    chosen = order[found.owner]
    return Pieces(starts=found.start_ns, ends=found.end_ns, classes=classes[chosen], owners=owner[chosen])


def _waiting(book: Book) -> NDArray[np.uint8]:
    """Class of a transfer -> class of waiting on the same axis."""
    table = np.arange(256).astype(np.uint8)
    prefix = exposed_transfer("").rstrip("]")
    for name, number in list(book.classes.numbers.items()):
        if name.startswith(prefix):
            table[number] = book.classes.number(exposed_wait(name[len(prefix) : -1]))
    return table


def _write_trace(rank: int, trace: Trace, book: Book, out: _Written) -> None:
    """Kernels and copies, a lane a stream."""
    on_gpu = trace.of_category("kernel", *MEMORY)
    kinds = np.array([_gpu_class(trace, name, book) for name in range(len(trace.names))] or [0], dtype=np.uint8)
    moved = trace.of_category(*MEMORY)
    names = book.names.all_of(trace.names)
    for number, lane in enumerate(trace.lanes):
        at = np.flatnonzero(on_gpu & (trace.lane == number))
        if not len(at):
            continue
        spans = np.zeros(len(at), dtype=SPAN_DTYPE)
        spans["start_ns"], spans["end_ns"] = trace.start_ns[at], trace.end_ns[at]
        spans["name"] = names[trace.name[at]]
        spans["of"] = np.where(moved[at], book.classes.number(GPU_MEMORY), kinds[trace.name[at]])
        for column in ("parent", "instance", "group", "wait_ns", "peer", "step"):
            spans[column] = NOTHING
        spans["step"] = NOTHING if trace.info.step is None else trace.info.step
        spans = spans[np.lexsort((-spans["end_ns"], spans["start_ns"]))]
        nowhere = np.full(len(spans), NOTHING, dtype=np.int64)
        _write_lane(
            rank, Lane(name=f"gpu {lane.process}, stream {lane.thread}", spans=spans, records=nowhere), book, out
        )


def _gpu_class(trace: Trace, name: int, book: Book) -> int:
    return book.classes.number(GPU_CLASSES.get(kernel_class(trace.names[name]).family, GPU_OTHER))
