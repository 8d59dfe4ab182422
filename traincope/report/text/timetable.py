"""A drawing of one step of a pipeline: a row per rank, a box per action, dots for idle time."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from traincope.lines import INDENT, indented
from traincope.palette import ACTIONS
from traincope.plan.pipeline.actions import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Action
from traincope.plan.pipeline.schedule import MAX_RANKS, TimedAction, Timetable
from traincope.units import share

IDLE, ASCII_IDLE = "·", "."
MAX_COLUMNS = 120
"""Maximum width of a recorded step in a report."""
MIN_COLUMNS = 1.3
"""Columns of a short action in a report; longer actions still show their microbatch."""
NO_LIMIT = 10**9

MEANINGS: Mapping[str, str] = {
    FORWARD: "F forward",
    BACKWARD: "B backward",
    BACKWARD_INPUT: "I backward for inputs",
    BACKWARD_WEIGHT: "W backward for weights",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A timetable as boxes: wide enough for their names if possible; empty if the boxes would be too narrow."""

    timetable: Timetable
    min_columns: float = 2
    """Columns of a short action. With 1, a box shows only its kind."""
    max_columns: int = NO_LIMIT
    max_ranks: int = NO_LIMIT

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        scale = self.scale(options.max_width)
        if scale is None:
            return
        for rank, row in self.timetable.rows.items():
            yield self._row(rank, row, scale=scale, idle=ASCII_IDLE if options.ascii_only else IDLE)
        yield indented([Text(self._legend(), style="dim")])

    def scale(self, width: int) -> float | None:
        """Columns per unit of time in a console of this width; None if nothing is drawn."""
        if len(self.timetable.rows) > self.max_ranks or not self.timetable.span:
            return None
        short = _short(self.timetable)
        columns = min(width, self.max_columns) - self._margin
        action_columns = min(_widest_name(self.timetable) + 1, columns * short / self.timetable.span)
        if _regular(self.timetable, unit=short):
            action_columns = math.floor(action_columns)
        return action_columns / short if action_columns >= self.min_columns else None

    @property
    def min_width(self) -> int:
        """Smallest width of a console in which something is drawn."""
        short = _short(self.timetable)
        min_columns = math.ceil(self.min_columns) if _regular(self.timetable, unit=short) else self.min_columns
        return self._margin + math.ceil(min_columns * self.timetable.span / short)

    @property
    def fits_wider_console(self) -> bool:
        """True if a wider console would draw it."""
        few = len(self.timetable.rows) <= self.max_ranks
        return few and bool(self.timetable.span) and self.min_width <= self.max_columns

    @property
    def _name_width(self) -> int:
        return max(len(str(rank)) for rank in self.timetable.rows)

    @property
    def _margin(self) -> int:
        """Columns of the rank numbers and the idle shares."""
        return INDENT + self._name_width + len("  99.9 %")

    def _row(self, rank: int, row: tuple[TimedAction, ...], *, scale: float, idle: str) -> Text:
        line = Text(" " * INDENT + f"{rank:>{self._name_width}} ", no_wrap=True, overflow="crop")
        stages = sorted({ran.action.stage for ran in row})
        at = 0
        for ran in row:
            start, end = round(ran.start * scale), round(ran.end * scale)
            line.append(idle * (start - at), style="dim")
            if end > max(start, at):
                box = _box(ran.action, chunk=stages.index(ran.action.stage), width=end - max(start, at))
                line.append(box, style=f"black on {ACTIONS[ran.action.kind]}")
            at = max(at, end)
        line.append(idle * (round(self.timetable.span * scale) - at), style="dim")
        work = sum(ran.end - ran.start for ran in row)
        return line.append(f" {share(1 - work / self.timetable.span):>6}")

    def _legend(self) -> str:
        rows = self.timetable.rows.values()
        kinds = {ran.action.kind for row in rows for ran in row}
        meanings = ", ".join(meaning for kind, meaning in MEANINGS.items() if kind in kinds)
        several = any(len({ran.action.stage for ran in row}) > 1 for row in rows)
        small = ", lower case: every second stage of a rank" if several else ""
        return f"{meanings}{small}; left: rank; right: its idle share"


def _short(timetable: Timetable) -> int:
    """The 33rd percentile of action lengths. The minimum is unsuitable because some actions do nothing."""
    lengths = sorted(ran.end - ran.start for row in timetable.rows.values() for ran in row)
    return max(lengths[len(lengths) // 3], 1)


def _regular(timetable: Timetable, *, unit: int) -> bool:
    """True if all boxes can be whole multiples of one width."""
    return all(ran.start % unit == 0 == ran.end % unit for row in timetable.rows.values() for ran in row)


def _widest_name(timetable: Timetable) -> int:
    return max(len(_name(ran.action, chunk=0)) for row in timetable.rows.values() for ran in row)


def _name(action: Action, *, chunk: int) -> str:
    kind = action.kind.lower() if chunk % 2 else action.kind
    return f"{kind}{action.microbatch}"


def _box(action: Action, *, chunk: int, width: int) -> str:
    """The name if it fits, otherwise only the kind: a truncated number would be a wrong number."""
    name = _name(action, chunk=chunk)
    return (name if len(name) <= width else name[0]).ljust(width)


@dataclass(frozen=True, slots=True)
class Captioned:
    """A drawing below its caption. If only the console is too narrow, the caption and the width that it needs."""

    caption: str
    drawing: Drawing

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.drawing.scale(options.max_width) is not None:
            yield indented([Text(self.caption, style="dim")])
            yield self.drawing
        elif self.drawing.fits_wider_console:
            yield indented([Text(f"{self.caption}: its drawing needs {self.drawing.min_width} columns", style="dim")])


def recorded(caption: str, timetable: Timetable) -> Captioned:
    """The drawing of a recorded step."""
    drawn = Drawing(timetable=timetable, min_columns=MIN_COLUMNS, max_columns=MAX_COLUMNS, max_ranks=MAX_RANKS)
    return Captioned(caption, drawn)
