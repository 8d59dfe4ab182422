"""PIPELINE BUBBLE: idle time by schedule, imbalance and jitter, and a drawing of one step."""

from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from traincope.analysis import Bubble
from traincope.lines import indented, table, text
from traincope.report.schema import Ledger
from traincope.report.sections.counted_steps import sampled
from traincope.report.sections.forms import across_hosts
from traincope.report.text.timetable import Drawing, recorded
from traincope.timeline import RankClock
from traincope.units import count, share

SHOWN_RATIO = 0.0005
"""Smallest share that is shown as more than 0.0 %."""


def pipeline(bubble: Bubble, *, ledger: Ledger, clocks: Sequence[RankClock]) -> Iterator[RenderableType]:
    """One row per stage with shares of its step time; below, a drawing of the step of median length."""
    head = Text("PIPELINE BUBBLE", style="bold")
    yield head.append_text(text(f"  {against_theory(bubble)}{sampled(ledger)}", style="not bold dim"))
    rows = table("stage", "schedule", "imbalance", "jitter", "bubble")
    for stage in bubble.stages:
        parts = (stage.schedule_ns, stage.imbalance_ns, stage.jitter_ns)
        shares = (share(part / stage.wall_ns if stage.wall_ns else None) for part in parts)
        rows.add_row(f"    {', '.join(map(str, [stage.stage, *stage.others]))}", *shares, share(stage.fraction_ratio))
    yield rows
    if (why := negative_jitter(bubble)) is not None:
        yield indented([Text(why, style="dim")])
    if bubble.timetable is not None and bubble.rows is not None:
        apart = across_hosts(clocks)
        title = f"step {bubble.step}, the step of median length{',' * bool(apart)}{apart}"
        yield Below(title, recorded(bubble.timetable))


NEGATIVE_JITTER = "negative jitter: less idle time than with each action's median"


def negative_jitter(bubble: Bubble, *, shown_ratio: float = SHOWN_RATIO) -> str | None:
    """Explain a negative jitter; None if no stage has one of at least `shown_ratio` of its time."""
    if all(stage.jitter_ns >= -shown_ratio * stage.wall_ns for stage in bubble.stages):
        return None
    return NEGATIVE_JITTER


class Below:
    """A drawing below its title. If only the console is too narrow, the title and the width that it needs."""

    def __init__(self, title: str, drawing: Drawing) -> None:
        self.title = title
        self.drawing = drawing

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.drawing.scale(options.max_width) is not None:
            yield indented([Text(self.title, style="dim")])
            yield self.drawing
        elif self.drawing.fits_wider_console:
            yield indented([Text(f"{self.title}: its drawing needs {self.drawing.min_width} columns", style="dim")])


def against_theory(bubble: Bubble) -> str:
    """The bubble and the formula's bubble, e.g. "16.9 % of step time, theory 11.1 % (1f1b, 8 microbatches)"."""
    theory = bubble.theory_ratio
    formula = "no formula for this schedule" if theory is None else f"theory {share(theory)}"
    spread = "" if bubble.chunks == 1 else f"{bubble.chunks} stages per rank, "
    layout = f"{bubble.schedule}, {spread}{count(bubble.num_microbatches)} microbatches"
    return f"{share(bubble.fraction_ratio)} of step time, {formula} ({layout})"
