"""Which lanes of which ranks a timeline shows, one below the other; folded where they are more than a screen has."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from traincope.store.tiles import Header, Row
from traincope.topology import axis_order
from traincope.units import numbers

ORDER = ("steps", "activity", "compute", "pipeline", "comm ", "data", "checkpoint", "host", "spans")
"""Of lanes, by how their names begin; others follow."""
FEW_RANKS = 8
"""Up to so many, all lanes are shown where none are asked for; of more, what each was doing."""
OVERVIEW = ("activity", "gpu ")
MOST_LINES = 400
"""Two pixels each."""
DEEPER = 0.3
"""Height of each further line of nested spans, next to a row that has one."""
GAP = 0.35
"""Between two ranks' lanes."""
TALL, PIXELS, SLIGHT = 24, 760, 9
"""Most pixels of a line; of all, where they fit; least of a line, before they are folded."""
FULL = 90
"""Up to so many lines, each has at least SLIGHT pixels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One row of the picture; several ranks' lanes where it is folded."""

    rows: tuple[Row, ...]
    top: float
    height: float

    @property
    def depth(self) -> int:
        """Lines of nested spans in it."""
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
        """Ranks, and the lane where there are several."""
        ranks = numbers(line.ranks, "rank")
        return f"{ranks}, {line.lane}" if self.several_lanes else ranks

    def beside(self, at: int) -> str:
        """What stands beside a line: the ranks once, then their lanes."""
        line, before = self.lines[at], self.lines[at - 1] if at else None
        again = before is not None and before.ranks == line.ranks
        return line.lane if again and self.several_lanes else self.name(line)


def lanes_of(header: Header) -> tuple[str, ...]:
    """All lanes that any rank has, in order."""
    return tuple(sorted({row.lane for row in header.rows}, key=_place))


def arranged(header: Header, *, ranks: Iterable[int] | None = None, lanes: Sequence[str] | None = None) -> Arrangement:
    """`None`: all ranks; the lanes that suit their number."""
    chosen = {row.rank for row in header.rows} if ranks is None else set(ranks)
    wanted = tuple(lanes) if lanes else None if len(chosen) <= FEW_RANKS else OVERVIEW
    rows = [row for row in header.rows if row.rank in chosen and (wanted is None or _is_one(row.lane, wanted))]
    several = len({row.lane for row in rows}) > 1
    if len(rows) > MOST_LINES:
        folded = _folded(sorted(rows, key=lambda row: (_place(row.lane), row.rank)))
    else:
        folded = [(row,) for row in sorted(rows, key=lambda row: (row.rank, _place(row.lane)))]
    lines = tuple(_stacked(folded, gap=GAP if several and len(rows) <= MOST_LINES else 0.0))
    units = lines[-1].top + lines[-1].height if lines else 1.0
    least = SLIGHT * units if len(lines) <= FULL else 0
    return Arrangement(lines=lines, several_lanes=several, pixels=round(max(min(TALL * units, PIXELS), least, 48)))


def _is_one(lane: str, wanted: Sequence[str]) -> bool:
    return any(lane == one or (one.endswith(" ") and lane.startswith(one)) for one in wanted)


def _place(lane: str) -> tuple[int, tuple[int, str]]:
    at = next((at for at, one in enumerate(ORDER) if lane.startswith(one)), len(ORDER))
    return at, axis_order(lane.removeprefix("comm "))


def _folded(rows: list[Row]) -> list[tuple[Row, ...]]:
    """Neighbours of one lane together."""
    size = -(-len(rows) // MOST_LINES)
    lines = []
    for lane in dict.fromkeys(row.lane for row in rows):
        own = [row for row in rows if row.lane == lane]
        lines += [tuple(own[at : at + size]) for at in range(0, len(own), size)]
    return lines


def _stacked(folded: Sequence[tuple[Row, ...]], *, gap: float) -> Iterable[Line]:
    top, before = 0.0, None
    for rows in folded:
        if before is not None and rows[0].rank != before:
            top += gap
        height = 1.0 + DEEPER * (min(max(row.lines for row in rows), 6) - 1)
        yield Line(rows=rows, top=top, height=height)
        top, before = top + height, rows[0].rank
