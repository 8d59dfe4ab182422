"""Pipeline section: the bubble by schedule, imbalance and jitter, and one step drawn."""

from collections.abc import Iterator

from traincope.analysis import StageBubble, recorded_schedule, theoretical_schedule
from traincope.figures.ranks.schedule import MAX_BOXES, fits, pipeline_schedule
from traincope.report.html.markup import Html, joined, tag
from traincope.report.html.plots import plot
from traincope.report.html.section import Section, table
from traincope.report.html.source import Source
from traincope.report.sections.forms import across_hosts
from traincope.report.text.sections.pipeline import against_theory, negative_jitter
from traincope.units import numbers

TITLE = "Pipeline"
HEADS = ("stage", "ranks", "schedule", "imbalance", "jitter", "bubble")
NO_CLOCK = "The schedule is not drawn: the offset between the stages' clocks is too uncertain."
NO_REPLAY = "The schedule is not drawn: the recorded order cannot be replayed, so its gaps have no cause."
TOO_LARGE = f"The schedule is not drawn: it has more than {MAX_BOXES:,} actions."


def pipeline(source: Source) -> Section:
    bubble = source.analysis.bubble
    if bubble is None or not source.analysis.ledger.rank_steps:
        return Section(name="pipeline", title=TITLE, missing="No pipeline actions were recorded.")
    negative = negative_jitter(bubble)
    rows = (_row(source, at, stage) for at, stage in enumerate(bubble.stages))
    return Section(
        name="pipeline",
        title=TITLE,
        lead=against_theory(bubble),
        body=(
            *_drawn(source),
            table("Bubble of each stage, shares of its step time", HEADS, rows, words=(0, 1)),
            *(() if negative is None else (tag("p", negative),)),
        ),
    )


def _drawn(source: Source) -> Iterator[Html]:
    bubble = source.analysis.bubble
    ran = None if bubble is None else bubble.timetable
    schedule = None if ran is None else recorded_schedule(ran)
    if bubble is None or ran is None:
        yield tag("p", NO_CLOCK, class_="nothing")
    elif schedule is None:
        yield tag("p", NO_REPLAY, class_="nothing")
    elif not fits(schedule):
        yield tag("p", TOO_LARGE, class_="nothing")
    else:
        apart = across_hosts(source.analysis.timeline.clocks)
        ran_as = f"Recorded step {bubble.step}, the step of median length{apart}"
        primes = "" if bubble.chunks == 1 else "; a prime marks a rank's second stage"
        caption = f"{ran_as}; below: the same order with equal stages and free messages{primes}"
        yield plot(pipeline_schedule(schedule, theoretical_schedule(ran)), name="schedule", caption=caption)


def _row(source: Source, at: int, stage: StageBubble) -> list[Html]:
    prefix, per = ("bubble", "stages", at), ("bubble", "stages", at, "wall_ns")
    return [
        joined(", ".join(map(str, [stage.stage, *stage.others]))),
        joined(numbers(stage.ranks)),
        *(source.number(*prefix, f"{part}_ns", form="share", per=per) for part in ("schedule", "imbalance", "jitter")),
        source.number(*prefix, "fraction_ratio", form="share"),
    ]
