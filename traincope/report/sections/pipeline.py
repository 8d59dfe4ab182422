"""Pipeline bubble: idle time by schedule, imbalance and jitter, one step drawn, and the bubble of theory."""

from collections.abc import Iterator

from traincope.analysis import Bubble, StageBubble, recorded_schedule, theoretical_schedule
from traincope.report.schema import Ledger
from traincope.report.sections.counted_steps import sampled
from traincope.report.sections.forms import across_hosts
from traincope.report.sections.section import Drawing, Lines, On, Part, Section, Table, Words, number, rows
from traincope.report.sections.source import Source
from traincope.units import count, numbers

NAME, TITLE = "pipeline", "Pipeline bubble"
NO_AXIS = "This run has no pipeline: no rank has a coordinate on an axis pp, and no pipeline action was recorded."
NO_STEP = "No step of the whole pipeline was recorded: a stage has no recorded actions, or no step was completed."
NO_CLOCK = "The schedule is not drawn: the offset between the stages' clocks is too uncertain."
NO_REPLAY = "The schedule is not drawn: the recorded order cannot be replayed, so its gaps have no cause."
MAX_DRAWN = 4_000
"""Actions in a figure; more are slow to draw and too small to read."""
TOO_LARGE = f"The schedule is not drawn: it has more than {MAX_DRAWN:,} actions. The viewer's timeline shows them."
NEGATIVE_JITTER = "negative jitter: less idle time than with each action's median"
SHOWN_RATIO = 0.0005
"""Smallest share that is shown as more than 0.0 %."""
CAUSES = ("schedule", "imbalance", "jitter")


def pipeline(source: Source) -> Section:
    bubble, ledger = source.analysis.bubble, source.document["ledger"]
    if bubble is None or ledger is None:
        return Section(name=NAME, title=TITLE, missing=_why_none(source))
    negative = any(stage.jitter_ns < -SHOWN_RATIO * stage.wall_ns for stage in bubble.stages)
    return Section(
        name=NAME,
        title=TITLE,
        lead=tuple(_lead(bubble, ledger)),
        parts=(
            *(_stages(bubble, on=on) for on in (On.CONSOLE, On.SCREEN)),
            Lines((NEGATIVE_JITTER,) if negative else ()),
            *_step(bubble, apart=across_hosts(source.analysis.timeline.clocks)),
            Table(
                caption="Compared with theory",
                heads=("bubble", "share of step time"),
                rows=rows(_theory()),
                on=On.SCREEN,
            ),
        ),
    )


def _why_none(source: Source) -> str:
    return NO_STEP if any(rank.coords.get("pp") is not None for rank in source.analysis.timeline.ranks) else NO_AXIS


def _lead(bubble: Bubble, ledger: Ledger) -> Iterator[Words]:
    """The bubble and the formula's bubble, e.g. "16.9 % of step time, theory 11.1 % (1f1b, 8 microbatches)"."""
    yield from (number("bubble", "fraction_ratio", form="share"), " of step time, ")
    if bubble.theory_ratio is None:
        yield "no formula for this schedule"
    else:
        yield from ("theory ", number("bubble", "theory_ratio", form="share"))
    spread = "" if bubble.chunks == 1 else f"{bubble.chunks} stages per rank, "
    yield f" ({bubble.schedule}, {spread}{count(bubble.num_microbatches)} microbatches){sampled(ledger)}"


def _stages(bubble: Bubble, *, on: On) -> Table:
    """A screen also names the ranks, which may be too many for a console's line."""
    names = ("stage",) if on is On.CONSOLE else ("stage", "ranks")
    return Table(
        caption="Each stage, shares of its step time",
        heads=(*names, *CAUSES, "bubble"),
        rows=rows(_stage(at, stage, on=on) for at, stage in enumerate(bubble.stages)),
        left=frozenset(range(len(names))),
        on=on,
    )


def _stage(at: int, stage: StageBubble, *, on: On) -> Iterator[Words]:
    path = ("bubble", "stages", at)
    yield ", ".join(map(str, [stage.stage, *stage.others]))
    if on is On.SCREEN:
        yield numbers(stage.ranks)
    for cause in CAUSES:
        yield number(*path, f"{cause}_ns", form="share", per=(*path, "wall_ns"))
    yield number(*path, "fraction_ratio", form="share")


def _step(bubble: Bubble, *, apart: str) -> Iterator[Part]:
    """The step of median length; a screen shows the same order in theory below it."""
    if bubble.timetable is None:
        yield Lines((NO_CLOCK,), on=On.SCREEN)
        return
    caption = f"step {bubble.step}, the step of median length{apart}"
    if bubble.rows is not None:
        yield Drawing(figure="timetable", of=(bubble.timetable,), caption=caption, on=On.CONSOLE)
    if sum(map(len, bubble.timetable.rows.values())) > MAX_DRAWN:
        yield Lines((TOO_LARGE,), on=On.SCREEN)
        return
    schedules = recorded_schedule(bubble.timetable), theoretical_schedule(bubble.timetable)
    if schedules[0] is None:
        yield Lines((NO_REPLAY,), on=On.SCREEN)
        return
    primes = "" if bubble.chunks == 1 else "; a prime marks a rank's second stage"
    theory = "theory: the same order with equal stages and free messages"
    yield Drawing(figure="schedule", of=schedules, caption=f"Recorded: {caption}; {theory}{primes}")


def _theory() -> Iterator[tuple[Words, ...]]:
    for name, key in (
        ("recorded", "fraction_ratio"),
        ("schedule's formula, with equal stages and free messages", "theory_ratio"),
        ("replay of the recorded order, with equal stages and free messages", "replay_ratio"),
    ):
        yield name, number("bubble", key, form="share")
