"""Choose the lanes and ranks that a timeline shows, and fold them where they exceed a screen."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from traincope.tiles.storage import Header, Row
from traincope.topology import axis_order
from traincope.units import numbers

ORDER = ("steps", "activity", "compute", "pipeline", "comm ", "data", "checkpoint", "host", "spans")
"""Order of the lanes, by the beginning of their names; others follow."""
FEW_RANKS = 8
"""Ranks up to which all lanes are shown by default; with more ranks, the overview lanes."""
OVERVIEW = ("activity", "gpu ")
MAX_LINES = 400
"""Lines of a picture, two pixels each."""
DEEPER = 0.3
"""Height of each further line of nested spans, relative to the first."""
GAP = 0.35
"""Gap between the lanes of two ranks."""
TALL, PIXELS, SLIGHT = 24, 760, 13
"""Pixels: most per line, most of all lines together, least per line before folding."""
FULL = 90
"""Lines up to which each has at least SLIGHT pixels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One row of the picture; a folded line holds the lanes of several ranks."""

    rows: tuple[Row, ...]
    top: float
    height: float

    @property
    def depth(self) -> int:
        """Number of lines of nested spans."""
        return max(row.lines for row in self.rows)

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(row.rank for row in self.rows)

    @property
    def lane(self) -> str:
        return self.rows[0].lane


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """Lines from top to bottom."""

    lines: tuple[Line, ...]
    several_lanes: bool
    pixels: int

    @property
    def height(self) -> float:
        return self.lines[-1].top + self.lines[-1].height if self.lines else 1.0

    def name(self, line: Line) -> str:
        """Ranks of a line, and its lane where the picture has several lanes."""
        ranks = numbers(line.ranks, "rank")
        return f"{ranks}, {line.lane}" if self.several_lanes else ranks

    def tick(self, at: int) -> str:
        """The tick label of a line: the ranks once, then their lanes."""
        line, before = self.lines[at], self.lines[at - 1] if at else None
        repeated = before is not None and before.ranks == line.ranks
        return line.lane if repeated and self.several_lanes else self.name(line)


def lanes_of(header: Header) -> tuple[str, ...]:
    """All lanes of any rank, in order."""
    return tuple(sorted({row.lane for row in header.rows}, key=_place))


def arranged(header: Header, *, ranks: Iterable[int] | None = None, lanes: Sequence[str] | None = None) -> Arrangement:
    """The arrangement of `ranks` (None: all) and `lanes` (None: chosen by the number of ranks)."""
    chosen = {row.rank for row in header.rows} if ranks is None else set(ranks)
    lane_names = tuple(lanes) if lanes else None if len(chosen) <= FEW_RANKS else OVERVIEW
    rows = [row for row in header.rows if row.rank in chosen and (lane_names is None or _is_one(row.lane, lane_names))]
    several = len({row.lane for row in rows}) > 1
    if len(rows) > MAX_LINES:
        folded = _folded(sorted(rows, key=lambda row: (_place(row.lane), row.rank)))
    else:
        folded = [(row,) for row in sorted(rows, key=lambda row: (row.rank, _place(row.lane)))]
    lines = tuple(_stacked(folded, gap=GAP if several and len(rows) <= MAX_LINES else 0.0))
    units = lines[-1].top + lines[-1].height if lines else 1.0
    min_pixels = SLIGHT * units if len(lines) <= FULL else 0
    return Arrangement(lines=lines, several_lanes=several, pixels=round(max(min(TALL * units, PIXELS), min_pixels, 48)))


def _is_one(lane: str, lane_names: Sequence[str]) -> bool:
    return any(lane == name or (name.endswith(" ") and lane.startswith(name)) for name in lane_names)


def _place(lane: str) -> tuple[int, tuple[int, str]]:
    at = next((at for at, prefix in enumerate(ORDER) if lane.startswith(prefix)), len(ORDER))
    return at, axis_order(lane.removeprefix("comm "))


def _folded(rows: list[Row]) -> list[tuple[Row, ...]]:
    """Fold neighbouring ranks of each lane into common lines."""
    size = -(-len(rows) // MAX_LINES)
    lines = []
    for lane in dict.fromkeys(row.lane for row in rows):
        members = [row for row in rows if row.lane == lane]
        lines += [tuple(members[at : at + size]) for at in range(0, len(members), size)]
    return lines


def _stacked(folded: Sequence[tuple[Row, ...]], *, gap: float) -> Iterable[Line]:
    top, before = 0.0, None
    for rows in folded:
        if before is not None and rows[0].rank != before:
            top += gap
        height = 1.0 + DEEPER * (min(max(row.lines for row in rows), 6) - 1)
        yield Line(rows=rows, top=top, height=height)
        top, before = top + height, rows[0].rank
