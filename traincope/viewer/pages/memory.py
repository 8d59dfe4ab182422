"""Memory page: memory of each rank over the steps, its peak, its use, steady growth, and imported snapshots."""

from collections.abc import Sequence

from dash.development.base_component import Component

from traincope.analysis import memory_samples
from traincope.figures.steps.memory import memory_over_steps
from traincope.report.text.sections.memory import USES
from traincope.units import size
from traincope.viewer.components import absent, section, table
from traincope.viewer.numbers import number
from traincope.viewer.pages.page import Asked, Needs, Page

MAX_ROWS = 256


def render(asked: Asked) -> Sequence[Component]:
    samples = memory_samples(asked.analysis.timeline)
    snapshots = _snapshots(asked)
    if not asked.analysis.memory:
        return snapshots or [absent("No memory was recorded: the memory probe was off, or no step was completed.")]
    drawn = asked.graph(memory_over_steps(samples)) if samples else absent("No step was completed.")
    return [
        section(
            "Over the steps",
            drawn,
            note="at the end of each step; line: largest rank; band: all ranks",
        ),
        section("Rank by rank", _table(asked)),
        *([section("Use where most is in use", _splits(asked))] if asked.analysis.memory_splits else []),
        *snapshots,
    ]


def _splits(asked: Asked) -> Component:
    document, keys = asked.document, ("total_bytes", *(key for _, key in USES))
    rows = [
        [f"rank {each.peak.rank}", *(number(document, "memory_split", at, key, form="size") for key in keys)]
        for at, each in enumerate(asked.analysis.memory_splits[:MAX_ROWS])
    ]
    return table(("rank", "total", *(use for use, _ in USES)), rows, numbers_from=1)


def _snapshots(asked: Asked) -> list[Component]:
    """A table of live allocations for each imported snapshot and GPU."""
    return [
        section(
            f"Snapshot of rank {rank}, GPU {held.device}",
            table(
                ("place", "part of torch", "blocks", "allocated"),
                [
                    [
                        site.place or "no stack",
                        site.part,
                        str(site.blocks),
                        number(asked.document, "memory_snapshots", at, "sites", place, "bytes", form="size"),
                    ]
                    for place, site in enumerate(held.sites)
                ],
                numbers_from=2,
            ),
            note=f"{size(held.reserved_bytes)} reserved, {size(held.allocated_bytes)} allocated, "
            f"{size(held.inactive_bytes)} free in blocks of at most {size(held.largest_inactive_bytes)}",
        )
        for at, (rank, held) in enumerate((each.rank, each.memory) for each in asked.analysis.memory_snapshots)
    ]


def _table(asked: Asked) -> Component:
    document = asked.document
    rows = [
        [
            f"rank {use.rank}",
            use.measure,
            number(document, "memory", at, "peak_bytes", form="size"),
            number(document, "memory", at, "last_bytes", form="size"),
            number(document, "memory", at, "growth_bytes_per_step", form="size"),
            "grows steadily" if use.leak else "",
        ]
        for at, use in enumerate(asked.analysis.memory[:MAX_ROWS])
    ]
    return table(("rank", "measure", "peak", "last", "growth per step", ""), rows, numbers_from=2)


PAGE = Page(slug="memory", title="Memory", needs=Needs.ANALYSIS, render=render)
