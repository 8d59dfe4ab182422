"""A step of a pipeline as papers draw it: a row a rank, a box an action, and dots where a rank idles."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from traincope.palette import ACTIONS
from traincope.plan.actions import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Action
from traincope.plan.schedule import Ran, Timetable
from traincope.report import schema
from traincope.report.tables import INDENT, indented
from traincope.units import share

IDLE, ASCII_IDLE = "·", "."
MOST_RANKS, MOST_COLUMNS = 16, 120
"""Of a recorded step that a report draws."""
LEAST = 1.3
"""Columns of its short actions; longer ones have their numbers even so."""
MOST_ACTIONS = 256
"""Of a rank, in a document: more would fit no drawing."""
LONG = 10**9

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
    least: float = 2
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
        if len(self.timetable.rows) > self.most_ranks or not self.timetable.span:
            return None
        short = _short(self.timetable)
        columns = min(width, self.most_columns) - self._beside
        wanted = min(_widest_name(self.timetable) + 1, columns * short / self.timetable.span)
        if _regular(self.timetable, unit=short):
            wanted = math.floor(wanted)
        return wanted / short if wanted >= self.least else None

    @property
    def needs(self) -> int:
        """Columns of the console below which nothing is drawn."""
        short = _short(self.timetable)
        least = math.ceil(self.least) if _regular(self.timetable, unit=short) else self.least
        return self._beside + math.ceil(least * self.timetable.span / short)

    @property
    def fits_elsewhere(self) -> bool:
        """Whether a wide enough console draws it."""
        few = len(self.timetable.rows) <= self.most_ranks
        return few and bool(self.timetable.span) and self.needs <= self.most_columns

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
                line.append(box, style=f"black on {ACTIONS[ran.action.kind]}")
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


def _regular(timetable: Timetable, *, unit: int) -> bool:
    """Whether boxes can all be whole multiples of one width, as on paper."""
    return all(ran.start % unit == 0 == ran.end % unit for row in timetable.rows.values() for ran in row)


def _widest_name(timetable: Timetable) -> int:
    return max(len(_name(ran.action, chunk=0)) for row in timetable.rows.values() for ran in row)


def _name(action: Action, *, chunk: int) -> str:
    kind = action.kind.lower() if chunk % 2 else action.kind
    return f"{kind}{action.microbatch}"


def _box(action: Action, *, chunk: int, width: int) -> str:
    """The name where it has room, else the kind alone: half a number would be another one."""
    name = _name(action, chunk=chunk)
    return (name if len(name) <= width else name[0]).ljust(width)


def timetable_rows(timetable: Timetable | None) -> list[schema.TimetableRow] | None:
    """The timetable as a document has it; None where it is too large to be drawn, or an action's name was lost."""
    if timetable is None or len(timetable.rows) > MOST_RANKS or max(map(len, timetable.rows.values())) > MOST_ACTIONS:
        return None
    if any(ran.action.kind not in MEANINGS for row in timetable.rows.values() for ran in row):
        return None
    return [
        schema.TimetableRow(
            rank=rank,
            actions=[
                schema.ActionTime(
                    kind=ran.action.kind,
                    stage=ran.action.stage,
                    microbatch=ran.action.microbatch,
                    start_ns=ran.start,
                    end_ns=ran.end,
                )
                for ran in row
            ],
        )
        for rank, row in timetable.rows.items()
    ]


def recorded(rows: list[schema.TimetableRow]) -> Drawing:
    """The drawing of a recorded step, from a document's rows."""
    ran = {
        row["rank"]: tuple(
            Ran(Action(one["kind"], one["stage"], one["microbatch"]), one["start_ns"], one["end_ns"])
            for one in row["actions"]
        )
        for row in rows
    }
    span = max(one.end for row in ran.values() for one in row)
    timetable = Timetable(rows=ran, span=span)
    return Drawing(timetable=timetable, least=LEAST, most_columns=MOST_COLUMNS, most_ranks=MOST_RANKS)
