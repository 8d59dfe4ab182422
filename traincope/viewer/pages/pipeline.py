"""Pipeline: the recorded schedule as papers draw it, beside its theory; and what of the bubble is which part's."""

from collections.abc import Sequence

from dash.development.base_component import Component

from traincope.analysis import Bubble, recorded_schedule, theoretical_schedule
from traincope.figures.schedule import fits, pipeline_schedule
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
            "A step as it ran",
            _drawn(asked, bubble),
            note=f"{bubble.schedule}, {size}, step {bubble.step}, of median length",
        ),
        section(
            "The bubble, stage by stage",
            _stages(asked),
            note="shares of the stages' time; schedule, imbalance and jitter",
        ),
        section("Beside theory", _theory(asked)),
    ]


def _why_not(asked: Asked) -> str:
    if not any(rank.coords.get("pp") is not None for rank in asked.analysis.timeline.ranks):
        return (
            "There is no pipeline in this run: no rank has a place on an axis pp, and no pipeline action was recorded."
        )
    return (
        "No step of a whole pipeline was recorded: of some stage no rank's actions are there, or no step was completed."
    )


def _drawn(asked: Asked, bubble: Bubble) -> Component:
    if bubble.timetable is None:
        return absent("The ranks' clocks are known too roughly for their actions to be drawn beside each other.")
    ran = recorded_schedule(bubble.timetable)
    if ran is None:
        return absent("The recorded order cannot be replayed, so that its gaps cannot be explained.")
    if not fits(ran):
        return absent("The step has more actions than a picture can show; see them on the timeline.")
    return asked.graph(pipeline_schedule(ran, theoretical_schedule(bubble.timetable)))


def _stages(asked: Asked) -> Component:
    document = asked.document
    bubble = document["bubble"]
    rows = [
        [
            numbers([stage["stage"], *stage["others"]], "stage"),
            numbers(stage["ranks"], "rank"),
            *(
                number(document, "bubble", "stages", at, f"{part}_ns", form="duration")
                for part in ("schedule", "imbalance", "jitter")
            ),
            number(document, "bubble", "stages", at, "fraction_ratio", form="share"),
        ]
        for at, stage in enumerate(bubble["stages"] if bubble else ())
    ]
    return table(("stage", "ranks", "schedule", "imbalance", "jitter", "bubble"), rows, numbers_from=2)


def _theory(asked: Asked) -> Component:
    document = asked.document
    rows = [
        ["measured", number(document, "bubble", "fraction_ratio", form="share")],
        [
            "by the schedule's formula, for equal stages and free messages",
            number(document, "bubble", "theory_ratio", form="share"),
        ],
        ["the recorded order replayed so", number(document, "bubble", "replay_ratio", form="share")],
    ]
    return table(("bubble, of total time", ""), rows)


PAGE = Page(slug="pipeline", title="Pipeline", needs=Needs.ANALYSIS, render=render)
