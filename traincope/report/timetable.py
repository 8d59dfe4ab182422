"""A step of a pipeline as papers draw it: a row a rank, a box an action, and dots where a rank idles."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from traincope.plan.actions import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Action
from traincope.plan.schedule import Ran, Timetable
from traincope.report.palette import colour, tint
from traincope.report.tables import INDENT, indented
from traincope.report.units import share

IDLE, ASCII_IDLE = "·", "."
LONG = 10**9

COLOURS: Mapping[str, str] = {
    FORWARD: colour("forward"),
    BACKWARD: tint(colour("forward"), 0.45),
    BACKWARD_INPUT: tint(colour("forward"), 0.45),
    BACKWARD_WEIGHT: tint(colour("forward"), 0.75),
}
MEANINGS: Mapping[str, str] = {
    FORWARD: "F forward",
    BACKWARD: "B backward",
    BACKWARD_INPUT: "I its input's gradient",
    BACKWARD_WEIGHT: "W its weights'",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """As wide as it needs to name its boxes, if it has the room; nothing where they would be too narrow."""

    timetable: Timetable
    least: int = 2
    """Columns of a short action; with 1 only its kind is named."""
    most_columns: int = LONG
    most_ranks: int = LONG

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        scale = self.scale(options.max_width)
        if scale is None:
            return
        for rank, row in self.timetable.rows.items():
            yield self._row(rank, row, scale=scale, idle=ASCII_IDLE if options.ascii_only else IDLE)
        yield indented([Text(self._legend(), style="dim")])

    def scale(self, width: int) -> float | None:
        """Columns a unit of time in a console of this width; None where nothing is drawn."""
        if len(self.timetable.rows) > self.most_ranks:
            return None
        columns = min(width, self.most_columns) - self._beside
        fitting = range(_widest_name(self.timetable) + 1, self.least - 1, -1)
        short = _short(self.timetable)
        return next((wanted / short for wanted in fitting if wanted * self.timetable.span <= columns * short), None)

    @property
    def needs(self) -> int:
        """Columns of the console below which nothing is drawn."""
        return self._beside + math.ceil(self.least * self.timetable.span / _short(self.timetable))

    @property
    def _name_width(self) -> int:
        return max(len(str(rank)) for rank in self.timetable.rows)

    @property
    def _beside(self) -> int:
        """Columns for the ranks' names and their idle shares."""
        return INDENT + self._name_width + len("  99.9 %")

    def _row(self, rank: int, row: tuple[Ran, ...], *, scale: float, idle: str) -> Text:
        line = Text(" " * INDENT + f"{rank:>{self._name_width}} ", no_wrap=True, overflow="crop")
        stages = sorted({ran.action.stage for ran in row})
        at = 0
        for ran in row:
            start, end = round(ran.start * scale), round(ran.end * scale)
            line.append(idle * (start - at), style="dim")
            if end > max(start, at):
                box = _box(ran.action, chunk=stages.index(ran.action.stage), width=end - max(start, at))
                line.append(box, style=f"black on {COLOURS[ran.action.kind]}")
            at = max(at, end)
        line.append(idle * (round(self.timetable.span * scale) - at), style="dim")
        work = sum(ran.end - ran.start for ran in row)
        return line.append(f" {share(1 - work / self.timetable.span):>6}")

    def _legend(self) -> str:
        rows = self.timetable.rows.values()
        kinds = {ran.action.kind for row in rows for ran in row}
        told = ", ".join(meaning for kind, meaning in MEANINGS.items() if kind in kinds)
        several = any(len({ran.action.stage for ran in row}) > 1 for row in rows)
        small = ", small letters: every second stage of a rank" if several else ""
        return f"{told}{small}; left its rank, right its idle share"


def _short(timetable: Timetable) -> int:
    """A third of the actions are no longer; not the shortest, for some do nothing."""
    lengths = sorted(ran.end - ran.start for row in timetable.rows.values() for ran in row)
    return max(lengths[len(lengths) // 3], 1)


def _widest_name(timetable: Timetable) -> int:
    return max(len(_name(ran.action, chunk=0)) for row in timetable.rows.values() for ran in row)


def _name(action: Action, *, chunk: int) -> str:
    kind = action.kind.lower() if chunk % 2 else action.kind
    return f"{kind}{action.microbatch}"


def _box(action: Action, *, chunk: int, width: int) -> str:
    """The name where it has room, else the kind alone: half a number would be another one."""
    name = _name(action, chunk=chunk)
    return (name if len(name) <= width else name[0]).ljust(width)
