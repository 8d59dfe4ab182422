"""A window of rows of a run: its spans if they are few, otherwise the share of each bin that each class covers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import Ints
from traincope.events import Kind
from traincope.tiles.lanes import wait_classes
from traincope.tiles.raster import covered_ns
from traincope.tiles.storage import NOTHING, WHOLE, Row, Tiles
from traincope.timeline.intervals.painting import ranges

MAX_BARS = 2600
"""Number of pieces in a window above which it is rasterised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A time window, ns since the tiles' origin."""

    begin_ns: int
    end_ns: int
    columns: int
    """Maximum number of bins; at least half as many are used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Raster:
    """Shares of time per class and bin."""

    begin_ns: int
    width_ns: int
    classes: tuple[int, ...]
    shares: NDArray[np.float32]
    """Array (line, class, bin) in [0, 1], mean over the rows of a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """Arrays with one entry per bar."""

    line: NDArray[np.int32]
    depth: NDArray[np.int32]
    start_ns: Ints
    end_ns: Ints
    class_number: NDArray[np.uint8]
    """Class of each bar."""
    span: NDArray[np.int32]
    """Position of its span."""


def zoom(
    tiles: Tiles,
    lines: Sequence[Sequence[Row]],
    window: Window,
    *,
    max_bars: int = MAX_BARS,
) -> Raster | Bars:
    """Draw a window of rows. Each of `lines` is drawn as one line; a line of several rows is always rasterised."""
    rows = [row for line in lines for row in line]
    level, apart = _level(tiles, window), all(len(line) == 1 for line in lines)
    pieces = [_within(tiles, row, window) for row in rows] if apart or level is None else []
    if apart and sum(last - first for first, last in pieces) <= max_bars:
        return _bars(tiles, rows, pieces, window)
    classes = tuple(sorted({class_number for row in rows for class_number in row.classes}))
    line_of = np.repeat(np.arange(len(lines)), [len(line) for line in lines])
    if level is None:
        width_ns = max(-(-(window.end_ns - window.begin_ns) // window.columns), 1)
        begin_ns, bins = window.begin_ns, max(-(-(window.end_ns - window.begin_ns) // width_ns), 1)
        sums = _from_pieces(tiles, pieces, line_of, classes, begin_ns=begin_ns, width_ns=width_ns, bins=bins)
        shares = (sums.reshape(len(lines), len(classes), -1) / width_ns).astype(np.float32)
    else:
        begin_ns, width_ns, shares = _from_level(tiles, level, rows, line_of, classes, window)
    shares /= np.array([len(line) for line in lines], dtype=np.float32)[:, None, None]
    return Raster(begin_ns=begin_ns, width_ns=width_ns, classes=classes, shares=shares)


def class_times(tiles: Tiles, rows: Sequence[Row], *, begin_ns: int, end_ns: int) -> dict[int, int]:
    """Class -> its time in these rows within a window, ns, without rounding. The largest first."""
    window, totals = Window(begin_ns=begin_ns, end_ns=end_ns, columns=1), np.zeros(256, dtype=np.int64)
    for row in rows:
        pieces = slice(*_within(tiles, row, window))
        lengths = tiles.ends[pieces].clip(max=end_ns) - tiles.starts[pieces].clip(min=begin_ns)
        np.add.at(totals, tiles.classes[pieces], lengths)
    order = np.argsort(-totals, kind="stable").tolist()
    return {number: int(totals[number]) for number in order if totals[number]}


def _within(tiles: Tiles, row: Row, window: Window) -> tuple[int, int]:
    """Range of the row's pieces that reach into the window; disjoint pieces are ordered by begin and by end."""
    ends, starts = tiles.ends[row.pieces], tiles.starts[row.pieces]
    first = int(np.searchsorted(ends, window.begin_ns, side="right"))
    last = int(np.searchsorted(starts, window.end_ns, side="left"))
    return row.first_piece + first, row.first_piece + max(last, first)


def _level(tiles: Tiles, window: Window) -> int | None:
    """The coarsest level that is fine enough; None if the pieces are needed."""
    for at, level in enumerate(tiles.header.levels):
        if level.width_ns * window.columns <= 2 * (window.end_ns - window.begin_ns):
            return at
    return None


def _from_pieces(
    tiles: Tiles,
    pieces: Sequence[tuple[int, int]],
    line_of: NDArray[np.int64],
    classes: tuple[int, ...],
    *,
    begin_ns: int,
    width_ns: int,
    bins: int,
) -> NDArray[np.float64]:
    first, last = (np.array([pair[side] for pair in pieces], dtype=np.int64) for side in (0, 1))
    at = ranges(first, last)
    code = np.zeros(256, dtype=np.int64)
    code[list(classes)] = np.arange(len(classes))
    channel = np.repeat(line_of, last - first) * len(classes) + code[tiles.classes[at]]
    num_channels = (int(line_of[-1]) + 1) * len(classes) if len(line_of) else 0
    return covered_ns(
        tiles.starts[at],
        tiles.ends[at],
        channel,
        num_channels=num_channels,
        begin_ns=begin_ns,
        width_ns=width_ns,
        bins=bins,
    )


def _from_level(
    tiles: Tiles,
    at: int,
    rows: Sequence[Row],
    line_of: NDArray[np.int64],
    classes: tuple[int, ...],
    window: Window,
) -> tuple[int, int, NDArray[np.float32]]:
    """Begin, bin width and the summed shares of the rows; narrow bins of the level are merged."""
    level = tiles.header.levels[at]
    merged = max(-(-(window.end_ns - window.begin_ns) // (level.width_ns * window.columns)), 1)
    first = min(max(window.begin_ns // level.width_ns, 0), level.bins - 1)
    last = min(max(-(-window.end_ns // level.width_ns), first + 1), level.bins)
    bins = -(-(last - first) // merged)
    number = {class_number: position for position, class_number in enumerate(classes)}
    sums = np.zeros((int(line_of[-1]) + 1, len(classes), bins * merged), dtype=np.float32)
    for line, row in zip(line_of.tolist(), rows, strict=True):
        channels = tiles.levels[at][row.first_channel : row.first_channel + len(row.classes), first:last]
        sums[line, [number[class_number] for class_number in row.classes], : last - first] += channels
    sums *= 1 / (WHOLE * merged)
    shares = sums[:, :, ::merged].copy()
    for begin in range(1, merged):
        shares += sums[:, :, begin::merged]
    return first * level.width_ns, merged * level.width_ns, shares


def _bars(
    tiles: Tiles,
    rows: Sequence[Row],
    pieces: Sequence[tuple[int, int]],
    window: Window,
) -> Bars:
    columns: list[list[NDArray[np.integer]]] = [[] for _ in range(6)]
    for line, (row, (first, last)) in enumerate(zip(rows, pieces, strict=True)):
        drawn = _span_bars(tiles, first, last) if row.num_spans else _piece_bars(tiles, first, last)
        depth, start, end, class_number, span = drawn
        for column, values in zip(
            columns, (np.full(len(start), line), depth, start, end, class_number, span), strict=True
        ):
            column.append(values)
    empty = np.empty(0, dtype=np.int64)
    line_, depth, start, end, class_number, span = (np.concatenate([*column, empty]) for column in columns)
    shown = (end > window.begin_ns) & (start < window.end_ns)
    return Bars(
        line=line_[shown].astype(np.int32),
        depth=depth[shown].astype(np.int32),
        start_ns=start[shown].astype(np.int64),
        end_ns=end[shown].astype(np.int64),
        class_number=class_number[shown].astype(np.uint8),
        span=span[shown].astype(np.int32),
    )


def _piece_bars(tiles: Tiles, first: int, last: int) -> tuple[NDArray[np.integer], ...]:
    """Bars of a row without spans: its pieces."""
    depth = np.zeros(last - first, dtype=np.int64)
    pieces = slice(first, last)
    return depth, tiles.starts[pieces], tiles.ends[pieces], tiles.classes[pieces], tiles.owners[pieces]


def _span_bars(tiles: Tiles, first: int, last: int) -> tuple[NDArray[np.integer], ...]:
    """Bars of the spans that own a piece, and of their parents; the wait of a stall is a bar of its own."""
    at = np.unique(tiles.owners[first:last])
    while True:
        parents = tiles.spans["parent"][at]
        wider = np.union1d(at, parents[parents != NOTHING])
        if len(wider) == len(at):
            break
        at = wider
    spans = tiles.spans[at]
    start, end, class_number = spans["start_ns"].copy(), spans["end_ns"], spans["class"]
    waited = np.flatnonzero((spans["kind"] == Kind.STALL) & (spans["wait_ns"] > 0))
    until = start[waited] + spans["wait_ns"][waited]
    waits_from = start[waited]
    start[waited] = until
    transfers = np.flatnonzero(end > start)
    join = np.concatenate
    return (
        join([spans["depth"][waited], spans["depth"][transfers]]).astype(np.int64),
        join([waits_from, start[transfers]]),
        join([until, end[transfers]]),
        join([wait_classes(tiles.header.classes)[class_number[waited]], class_number[transfers]]).astype(np.int64),
        join([at[waited], at[transfers]]).astype(np.int64),
    )
