"""Memory page: memory of each rank over the steps, its peak, and steady growth."""

from collections.abc import Sequence

from dash.development.base_component import Component

from traincope.analysis import memory_samples
from traincope.figures.steps.memory import memory_over_steps
from traincope.viewer.components import absent, section, table
from traincope.viewer.numbers import number
from traincope.viewer.pages.page import Asked, Needs, Page

MAX_ROWS = 256


def render(asked: Asked) -> Sequence[Component]:
    samples = memory_samples(asked.analysis.timeline)
    uses = asked.document["memory"]
    if not uses:
        return [absent("No memory was recorded: the memory probe was off, or no step was completed.")]
    drawn = asked.graph(memory_over_steps(samples)) if samples else absent("No step was completed.")
    return [
        section(
            "Over the steps",
            drawn,
            note="at the end of each step; line: largest rank; band: all ranks",
        ),
        section("Rank by rank", _table(asked)),
    ]


def _table(asked: Asked) -> Component:
    document = asked.document
    rows = [
        [
            f"rank {use['rank']}",
            use["measure"],
            number(document, "memory", at, "peak_bytes", form="size"),
            number(document, "memory", at, "last_bytes", form="size"),
            number(document, "memory", at, "growth_bytes_per_step", form="size"),
            "grows steadily" if use["leak"] else "",
        ]
        for at, use in enumerate((document["memory"] or [])[:MAX_ROWS])
    ]
    return table(("rank", "measure", "peak", "last", "growth per step", ""), rows, numbers_from=2)


PAGE = Page(slug="memory", title="Memory", needs=Needs.ANALYSIS, render=render)
