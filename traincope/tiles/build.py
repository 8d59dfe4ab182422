"""Writing a timeline as tiles, rank by rank, so that only one rank is in memory twice."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.kernels.kernel_classes import Family, kernel_class
from traincope.arrays import Bools, Ints
from traincope.events import Flag, Kind
from traincope.store.side_tables.traces import MEMORY, Trace
from traincope.tiles.lanes import ACTIVITY, Lanes, Registry, rank_lanes, wait_classes
from traincope.tiles.raster import covered_ns
from traincope.tiles.storage import (
    DOCUMENT_FILE,
    NOTHING,
    SPAN_DTYPE,
    WHOLE,
    Group,
    Header,
    Level,
    Row,
    TilesWriter,
    complete_tiles,
)
from traincope.timeline import Instances, Timeline
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
    """Disjoint pieces of the rows of a rank, row by row in order."""

    row: Ints
    starts: Ints
    ends: Ints
    classes: NDArray[np.uint8]
    owners: NDArray[np.int32]
    """Position of the owner among the rank's spans."""


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

    def add(self, rank: int, lanes: Lanes, registry: Registry) -> None:
        """Write the lanes of a rank, and its activity if it has any."""
        acting = _acting(lanes)
        sizes = [end - begin for begin, end in pairwise(lanes.bounds)]
        names, row = [*lanes.names, *([ACTIVITY] if len(acting) else [])], np.repeat(np.arange(len(sizes)), sizes)
        lines = _nest(lanes, row)
        pieces = _pieces(
            lanes.spans,
            np.append(np.arange(len(row)), acting),
            np.append(row, np.full(len(acting), len(sizes))),
            registry,
        )
        present = np.zeros((len(names), 1 << 8), dtype=bool)
        present[pieces.row, pieces.classes] = True
        num_pieces = np.bincount(pieces.row, minlength=len(names)).tolist()
        for at, name in enumerate(names):
            is_lane = at < len(sizes)
            new = Row(
                rank=rank,
                lane=name,
                lines=lines[at] if is_lane else 1,
                first_span=self.spans + lanes.bounds[min(at, len(sizes))],
                num_spans=sizes[at] if is_lane else 0,
                first_piece=self.pieces,
                num_pieces=num_pieces[at],
                first_channel=self.channels,
                classes=tuple(np.flatnonzero(present[at]).tolist()),
            )
            self.rows.append(new)
            self.pieces, self.channels = self.pieces + new.num_pieces, self.channels + len(new.classes)
        self._write(lanes.spans, pieces, present)
        self.spans += len(lanes.spans)

    def _write(self, spans: NDArray[np.void], pieces: Pieces, present: Bools) -> None:
        """Write a rank's spans, which then are those of the tiles, and its pieces."""
        for column in ("start_ns", "end_ns"):
            spans[column] -= self.origin_ns
        spans["parent"] += np.where(spans["parent"] == NOTHING, 0, np.int32(self.spans))
        starts, ends = pieces.starts - self.origin_ns, pieces.ends - self.origin_ns
        columns: dict[str, NDArray[Any]] = {
            "spans": spans,
            "starts": starts,
            "ends": ends,
            "classes": pieces.classes,
            "owners": pieces.owners + np.int32(self.spans),
        }
        for column, values in columns.items():
            self.writer.append(column, values)
        numbers = np.cumsum(present) - 1
        channel, num_channels = numbers[pieces.row * present.shape[1] + pieces.classes], int(present.sum())
        for at, level in enumerate(self.levels):
            sums = covered_ns(
                starts, ends, channel, num_channels=num_channels, begin_ns=0, width_ns=level.width_ns, bins=level.bins
            )
            self.writer.append(f"level-{at}", np.rint(sums * (WHOLE / level.width_ns)).astype(np.uint16))


Progress = Callable[[int, int], None]
"""Called with the number of ranks that were written, and of all."""


def write_tiles(
    path: Path,
    timeline: Timeline,
    instances: Instances,
    *,
    document: Callable[[], str],
    progress: Progress = lambda *_: None,
) -> None:
    """Write the directory `path` atomically, and remove the other tiles next to it.

    `document` returns the report of the same run, as JSON. It is called when all other files are written. A reader that
    has older tiles open keeps them until it closes them. Raises OSError if nothing can be written.
    """
    older = complete_tiles(path.parent)
    writer = TilesWriter(path)
    try:
        header = _write_columns(timeline, instances, writer, progress)
        writer.write_text(DOCUMENT_FILE, document())
        writer.finish(header)
    finally:
        writer.abandon()
    for other in older:
        shutil.rmtree(other, ignore_errors=True)


def _write_columns(timeline: Timeline, instances: Instances, writer: TilesWriter, progress: Progress) -> Header:
    origin_ns, end_ns = timeline.extent_ns
    registry = Registry()
    num_records = sum(len(records) for rank in timeline.ranks for records in rank.threads.values())
    out = _Columns(writer=writer, origin_ns=origin_ns, levels=levels(end_ns - origin_ns, num_pieces=2 * num_records))
    for done, rank in enumerate(timeline.ranks, start=1):
        out.add(rank.rank, rank_lanes(rank, instances, registry), registry)
        progress(done, len(timeline.ranks))
    for number, traces in timeline.traces.ranks.items():
        for trace in traces:
            out.add(number, _trace_lanes(trace, registry), registry)
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


def _steps(timeline: Timeline, origin_ns: int) -> Iterator[tuple[int, int, int]]:
    borders: dict[int, tuple[int, int]] = {}
    for rank in timeline.ranks:
        for step in rank.steps:
            start, end = borders.get(step.number, (step.start_ns, step.end_ns))
            borders[step.number] = (min(start, step.start_ns), max(end, step.end_ns))
    for number in sorted(borders):
        start, end = borders[number]
        yield number, start - origin_ns, end - origin_ns


def _acting(lanes: Lanes) -> Ints:
    """Positions of the spans that own the training thread's time, in order of their records."""
    spans = lanes.spans
    at = np.flatnonzero(np.isin(spans["kind"], OWNING) & (spans["flags"] & Flag.DEVICE == 0))
    at = at[lanes.records[at] != NOTHING]
    in_order: Ints = at[np.argsort(lanes.records[at])]
    return in_order


def _nest(lanes: Lanes, row: Ints) -> list[int]:
    """Fill in depth and parent of the spans; returns the number of lines of each lane."""
    spans = lanes.spans
    apart_ns = _apart_ns(spans)
    nested = nesting(spans["start_ns"] + row * apart_ns, spans["end_ns"] + row * apart_ns)
    spans["depth"] = np.minimum(nested.depth, 255)
    spans["parent"] = nested.parent
    lines = np.maximum.reduceat(spans["depth"], lanes.bounds[:-1]) if len(spans) else spans["depth"]
    return [depth + 1 for depth in lines.tolist()]


def _apart_ns(spans: NDArray[np.void]) -> int:
    """A time by which rows are moved apart, so that spans of two rows never meet and one pass covers all rows."""
    return int(spans["end_ns"].max() - spans["start_ns"].min()) + 2 if len(spans) else 0


def _pieces(spans: NDArray[np.void], at: Ints, row: Ints, registry: Registry) -> Pieces:
    """Pieces of the spans `at` these positions in rows; the wait of a stall is a piece of its own before the
    transfer.
    """
    move_ns = row * _apart_ns(spans)
    starts, ends, class_number = spans["start_ns"][at] + move_ns, spans["end_ns"][at] + move_ns, spans["class"][at]
    wait_ns = spans["wait_ns"][at]
    waited = np.flatnonzero((wait_ns > 0) & (spans["kind"][at] == Kind.STALL))
    waits_from, waits_to = starts[waited], starts[waited] + wait_ns[waited]
    starts[waited] = waits_to
    all_starts, all_ends = np.concatenate([starts, waits_from]), np.concatenate([ends, waits_to])
    order = np.lexsort((-all_ends, all_starts))
    parts = painted(all_starts[order], all_ends[order])
    owner = order[parts.owner]
    waits = owner >= len(at)
    owner[waits] = waited[owner[waits] - len(at)]
    classes = class_number[owner]
    classes[waits] = wait_classes(registry.classes.texts)[classes[waits]]
    return Pieces(
        row=row[owner],
        starts=parts.start_ns - move_ns[owner],
        ends=parts.end_ns - move_ns[owner],
        classes=classes,
        owners=at[owner].astype(np.int32),
    )


def _trace_lanes(trace: Trace, registry: Registry) -> Lanes:
    """Kernels and copies, one lane per stream."""
    kinds = np.array([_gpu_class(trace, name, registry) for name in range(len(trace.names))] or [0], dtype=np.uint8)
    names = registry.names.numbers_of(trace.names)
    at = np.flatnonzero(trace.of_category("kernel", *MEMORY))
    at = at[np.lexsort((-trace.end_ns[at], trace.start_ns[at], trace.lane[at]))]
    spans = np.zeros(len(at), dtype=SPAN_DTYPE)
    spans["start_ns"], spans["end_ns"] = trace.start_ns[at], trace.end_ns[at]
    spans["name"] = names[trace.name[at]]
    if len(at):
        moved = trace.of_category(*MEMORY)[at]
        spans["class"] = np.where(moved, registry.classes.number(GPU_MEMORY), kinds[trace.name[at]])
    for column in ("parent", "instance", "group", "wait_ns", "peer", "step"):
        spans[column] = NOTHING
    spans["step"] = NOTHING if trace.info.step is None else trace.info.step
    numbers, first = np.unique(trace.lane[at], return_index=True)
    streams = [trace.lanes[number] for number in numbers.tolist()]
    return Lanes(
        names=tuple(f"gpu {stream.process}, stream {stream.thread}" for stream in streams),
        bounds=(*first.tolist(), len(at)),
        spans=spans,
        records=np.full(len(at), NOTHING),
    )


def _gpu_class(trace: Trace, name: int, registry: Registry) -> int:
    return registry.classes.number(GPU_CLASSES.get(kernel_class(trace.names[name]).family, GPU_OTHER))
