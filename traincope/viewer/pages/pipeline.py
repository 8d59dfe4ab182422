"""Pipeline page: the recorded schedule next to its theory, and the bubble by stage and cause."""

from collections.abc import Iterator, Sequence

from dash.development.base_component import Component

from traincope.analysis import Bubble, recorded_schedule, theoretical_schedule
from traincope.figures.ranks.schedule import fits, pipeline_schedule
from traincope.report.text.sections.pipeline import negative_jitter
from traincope.units import count, numbers
from traincope.viewer.components import absent, section, table
from traincope.viewer.numbers import number
from traincope.viewer.pages.page import Asked, Needs, Page


def render(asked: Asked) -> Sequence[Component]:
    bubble = asked.analysis.bubble
    if bubble is None:
        return [absent(_why_not(asked))]
    size = f"{count(bubble.num_stages, 'stage')}, {count(bubble.num_microbatches, 'microbatch')}".replace(
        "microbatchs", "microbatches"
    )
    return [
        section(
            "Recorded schedule",
            _drawn(asked, bubble),
            note=f"{bubble.schedule}, {size}; step {bubble.step}, the step of median length",
        ),
        section(
            "Bubble by stage",
            _stages(asked, bubble),
            note="; ".join(_notes(bubble)),
        ),
        section("Compared with theory", _theory(asked)),
    ]


def _notes(bubble: Bubble) -> Iterator[str]:
    yield "idle time by cause, summed over ranks and steps"
    yield "bubble: share of the stage's time"
    if (negative := negative_jitter(bubble, shown_ratio=0.0)) is not None:
        yield negative


def _why_not(asked: Asked) -> str:
    if not any(rank.coords.get("pp") is not None for rank in asked.analysis.timeline.ranks):
        return "This run has no pipeline: no rank has a coordinate on an axis pp, and no pipeline action was recorded."
    return "No step of the whole pipeline was recorded: a stage has no recorded actions, or no step was completed."


def _drawn(asked: Asked, bubble: Bubble) -> Component:
    if bubble.timetable is None:
        return absent("The schedule is not drawn: the offset between the stages' clocks is too uncertain.")
    ran = recorded_schedule(bubble.timetable)
    if ran is None:
        return absent("The schedule is not drawn: the recorded order cannot be replayed, so its gaps have no cause.")
    if not fits(ran):
        return absent("The step has too many actions to draw here. The Timeline page shows them.")
    return asked.graph(pipeline_schedule(ran, theoretical_schedule(bubble.timetable)))


def _stages(asked: Asked, bubble: Bubble) -> Component:
    document = asked.document
    rows = [
        [
            numbers([stage.stage, *stage.others], "stage"),
            numbers(stage.ranks, "rank"),
            *(
                number(document, "bubble", "stages", at, f"{part}_ns", form="duration")
                for part in ("schedule", "imbalance", "jitter")
            ),
            number(document, "bubble", "stages", at, "fraction_ratio", form="share"),
        ]
        for at, stage in enumerate(bubble.stages)
    ]
    return table(("stage", "ranks", "schedule", "imbalance", "jitter", "bubble"), rows, numbers_from=2)


def _theory(asked: Asked) -> Component:
    document = asked.document
    rows = [
        ["recorded", number(document, "bubble", "fraction_ratio", form="share")],
        [
            "schedule's formula, with equal stages and free messages",
            number(document, "bubble", "theory_ratio", form="share"),
        ],
        [
            "replay of the recorded order, with equal stages and free messages",
            number(document, "bubble", "replay_ratio", form="share"),
        ],
    ]
    return table(("bubble", "share of step time"), rows)


PAGE = Page(slug="pipeline", title="Pipeline", needs=Needs.ANALYSIS, render=render)
