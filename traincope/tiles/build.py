"""Writing a timeline as tiles, rank by rank, so that only one rank is in memory twice."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.kernels.kernel_classes import Family, kernel_class
from traincope.arrays import Ints
from traincope.events import Flag, Kind
from traincope.store.side_tables.traces import MEMORY, Trace
from traincope.tiles.lanes import ACTIVITY, Lane, Registry, lanes, wait_classes
from traincope.tiles.raster import covered_ns
from traincope.tiles.storage import DOCUMENT_FILE, NOTHING, SPAN_DTYPE, WHOLE, Group, Header, Level, Row, TilesWriter
from traincope.timeline import Instances, RankTimeline, Timeline
from traincope.timeline.intervals.painting import nesting, painted

COARSEST_BINS, FINER = 1024, 4
"""Bins of the coarsest level, and bins of the next level in each of them."""
WINDOW_BINS = 512
"""Minimum number of bins in a drawn window."""
MAX_PIECES = 4_000_000
"""Maximum number of pieces in a window without a level, over all rows; more take too long to draw."""
MAX_NAME_LENGTH = 1000
OWNING = (Kind.PHASE, Kind.ACTION, Kind.STALL)
GPU_CLASSES = {Family.COMMUNICATION: "gpu communication", Family.COMPUTE: "gpu compute"}
GPU_MEMORY, GPU_OTHER = "gpu memory", "gpu other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """Disjoint pieces of one row, in order."""

    starts: Ints
    ends: Ints
    classes: NDArray[np.uint8]
    owners: NDArray[np.int32]


@dataclass(slots=True, kw_only=True)
class _Columns:
    """Columns being written, with their current lengths."""

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
        relative = spans.copy()
        relative["start_ns"] -= self.origin_ns
        relative["end_ns"] -= self.origin_ns
        starts, ends = pieces.starts - self.origin_ns, pieces.ends - self.origin_ns
        columns: dict[str, NDArray[Any]] = {
            "spans": relative,
            "starts": starts,
            "ends": ends,
            "classes": pieces.classes,
            "owners": pieces.owners,
        }
        for column, values in columns.items():
            self.writer.append(column, values)
        channel = np.searchsorted(present, pieces.classes)
        for at, level in enumerate(self.levels):
            sums = covered_ns(
                starts, ends, channel, num_channels=len(present), begin_ns=0, width_ns=level.width_ns, bins=level.bins
            )
            self.writer.append(f"level-{at}", np.rint(sums * (WHOLE / level.width_ns)).astype(np.uint16))
        self.spans += len(spans)
        self.pieces += len(pieces.starts)
        self.channels += len(present)


Progress = Callable[[int, int], None]
"""Called with the number of ranks that were written, and of all."""


def write_tiles(
    path: Path, timeline: Timeline, instances: Instances, *, document: str, progress: Progress = lambda *_: None
) -> None:
    """Write the directory `path` atomically, and remove the other directories next to it.

    `document`: the report of the same run, as JSON. A reader that has older tiles open keeps them until it closes them.
    Raises OSError if nothing can be written.
    """
    older = [other for other in path.parent.glob("*") if other.is_dir()]
    writer = TilesWriter(path)
    try:
        writer.write_text(DOCUMENT_FILE, document)
        writer.finish(_write_columns(timeline, instances, writer, progress))
    finally:
        writer.abandon()
    for other in older:
        shutil.rmtree(other, ignore_errors=True)


def _write_columns(timeline: Timeline, instances: Instances, writer: TilesWriter, progress: Progress) -> Header:
    origin_ns, end_ns = _extent(timeline)
    registry = Registry()
    num_records = sum(len(records) for rank in timeline.ranks for records in rank.threads.values())
    out = _Columns(writer=writer, origin_ns=origin_ns, levels=levels(end_ns - origin_ns, num_pieces=2 * num_records))
    for done, rank in enumerate(timeline.ranks, start=1):
        _write_rank(rank, instances, registry, out)
        progress(done, len(timeline.ranks))
    for number, traces in timeline.traces.ranks.items():
        for trace in traces:
            _write_trace(number, trace, registry, out)
    return Header(
        origin_ns=origin_ns,
        length_ns=end_ns - origin_ns,
        rows=tuple(out.rows),
        classes=registry.classes.texts,
        names=tuple(name[:MAX_NAME_LENGTH] for name in registry.names.numbers),
        groups=tuple(Group(axis=axis, key=key, ranks=ranks) for axis, key, ranks in registry.groups),
        levels=out.levels,
        steps=tuple(_steps(timeline, origin_ns)),
        bounds_ns={clock.rank: clock.bound_ns for clock in timeline.clocks},
        hosts={clock.rank: clock.host for clock in timeline.clocks},
        missing=tuple(timeline.run.missing),
    )


def levels(length_ns: int, *, num_pieces: int) -> tuple[Level, ...]:
    """Levels of the pyramid; empty if every window has few enough pieces."""
    parts = []
    bins, held = COARSEST_BINS, num_pieces
    while held > MAX_PIECES:
        width_ns = max(-(-length_ns // bins), 1)
        parts.append(Level(width_ns=width_ns, bins=bins))
        held = num_pieces * WINDOW_BINS // bins
        bins *= FINER
    return tuple(parts)


def _extent(timeline: Timeline) -> tuple[int, int]:
    """First and last instant of any record or kernel."""
    traces = [trace for parts in timeline.traces.ranks.values() for trace in parts if len(trace)]
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


def _write_rank(rank: RankTimeline, instances: Instances, registry: Registry, out: _Columns) -> None:
    span_of_record = np.full(len(rank.main), NOTHING, dtype=np.int32)
    first, num_spans = out.spans, 0
    parts: list[NDArray[np.void]] = []
    for lane in lanes(rank, instances, registry):
        known = lane.records != NOTHING
        span_of_record[lane.records[known]] = first + num_spans + np.flatnonzero(known)
        num_spans += len(lane.spans)
        parts.append(lane.spans)
        _write_lane(rank.rank, lane, registry, out)
    spans = np.concatenate(parts) if parts else np.empty(0, dtype=SPAN_DTYPE)
    owning = np.isin(rank.main["kind"], OWNING) & (rank.main["flags"] & Flag.DEVICE == 0) & (span_of_record != NOTHING)
    at = span_of_record[owning] - first
    if len(at):
        pieces = _pieces(spans[at], registry, owners=at + first)
        out.add(rank.rank, ACTIVITY, np.empty(0, dtype=SPAN_DTYPE), pieces, lines=1)


def _write_lane(rank: int, lane: Lane, registry: Registry, out: _Columns) -> None:
    spans = lane.spans
    nested = nesting(spans["start_ns"], spans["end_ns"])
    spans["depth"] = np.minimum(nested.depth, 255)
    spans["parent"] = np.where(nested.parent == NOTHING, NOTHING, nested.parent + out.spans)
    owners = np.arange(out.spans, out.spans + len(spans), dtype=np.int32)
    lines = int(spans["depth"].max(initial=0)) + 1
    out.add(rank, lane.name, spans, _pieces(spans, registry, owners=owners), lines=lines)


def _pieces(spans: NDArray[np.void], registry: Registry, *, owners: NDArray[np.int32]) -> Pieces:
    """Pieces of the spans; the wait of a stall is a piece of its own before the transfer."""
    starts, ends, class_number = spans["start_ns"].copy(), spans["end_ns"], spans["class"]
    waited = np.flatnonzero((spans["kind"] == Kind.STALL) & (spans["wait_ns"] > 0))
    waits_from, waits_to = starts[waited], starts[waited] + spans["wait_ns"][waited]
    starts[waited] = waits_to
    all_starts, all_ends = np.concatenate([starts, waits_from]), np.concatenate([ends, waits_to])
    classes = np.concatenate([class_number, wait_classes(registry.classes.texts)[class_number[waited]]])
    owner = np.concatenate([owners, owners[waited]])
    order = np.lexsort((-all_ends, all_starts))
    parts = painted(all_starts[order], all_ends[order])
    chosen = order[parts.owner]
    return Pieces(starts=parts.start_ns, ends=parts.end_ns, classes=classes[chosen], owners=owner[chosen])


def _write_trace(rank: int, trace: Trace, registry: Registry, out: _Columns) -> None:
    """Write kernels and copies, one lane per stream."""
    on_gpu = trace.of_category("kernel", *MEMORY)
    kinds = np.array([_gpu_class(trace, name, registry) for name in range(len(trace.names))] or [0], dtype=np.uint8)
    moved = trace.of_category(*MEMORY)
    names = registry.names.numbers_of(trace.names)
    for number, lane in enumerate(trace.lanes):
        at = np.flatnonzero(on_gpu & (trace.lane == number))
        if not len(at):
            continue
        spans = np.zeros(len(at), dtype=SPAN_DTYPE)
        spans["start_ns"], spans["end_ns"] = trace.start_ns[at], trace.end_ns[at]
        spans["name"] = names[trace.name[at]]
        spans["class"] = np.where(moved[at], registry.classes.number(GPU_MEMORY), kinds[trace.name[at]])
        for column in ("parent", "instance", "group", "wait_ns", "peer", "step"):
            spans[column] = NOTHING
        spans["step"] = NOTHING if trace.info.step is None else trace.info.step
        spans = spans[np.lexsort((-spans["end_ns"], spans["start_ns"]))]
        nowhere = np.full(len(spans), NOTHING, dtype=np.int64)
        _write_lane(
            rank, Lane(name=f"gpu {lane.process}, stream {lane.thread}", spans=spans, records=nowhere), registry, out
        )


def _gpu_class(trace: Trace, name: int, registry: Registry) -> int:
    return registry.classes.number(GPU_CLASSES.get(kernel_class(trace.names[name]).family, GPU_OTHER))
