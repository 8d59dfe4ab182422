"""Communication: what was sent on which axis, how long it took, and who waited in which group."""

from collections.abc import Sequence

from dash.development.base_component import Component

from traincope.analysis import AxisOperation
from traincope.figures.icicle import communication_icicle
from traincope.figures.wait_matrix import wait_matrix
from traincope.units import count, duration, gigabytes_per_second, size
from traincope.viewer.components import absent, graph, section, table
from traincope.viewer.numbers import number
from traincope.viewer.pages.page import Asked, Needs, Page

HEADS = ("axis", "operation", "count", "bytes", "transfer", "waiting", "exposed", "bus GB/s")
SIZE_HEADS = ("axis", "operation", "up to", "count", "transfer", "mean transfer", "bus GB/s")


def render(asked: Asked) -> Sequence[Component]:
    analysis = asked.analysis
    if not analysis.comm:
        return [absent(_why_not(asked))]
    shown = []
    if analysis.ledger.rank_steps:
        icicle = communication_icicle(analysis.comm, rank_steps=analysis.ledger.rank_steps)
        shown.append(
            section(
                "Of one rank in one step",
                graph(icicle, theme=asked.theme),
                note="axis, operation, and what of it was waiting, exposed, hidden",
            )
        )
    if analysis.group_waits:
        steps = max((rank.num_counted for rank in analysis.ledger.ranks), default=0)
        shown.append(
            section(
                "Who waited in which group",
                graph(wait_matrix(analysis.group_waits, steps=max(steps, 1)), theme=asked.theme),
            )
        )
    return [
        *shown,
        section("In numbers", _table(asked), note="sums over all ranks and counted steps"),
        section(
            "By size of the message",
            _sizes(analysis.comm),
            note="sums over all ranks and counted steps; each is as large as said, or more than half of it",
        ),
    ]


def _why_not(asked: Asked) -> str:
    if asked.document["run"]["world_size"] == 1:
        return "The run has one rank, which communicates with nobody."
    if asked.document["run"]["imported"]:
        return "The run was made of kernel traces: collectives are known as kernels only. See Hardware."
    return "No collective was recorded in a counted step; `traincope doctor` says of a run which probes were on."


def _table(asked: Asked) -> Component:
    document = asked.document

    def cells(at: int) -> list[Component]:
        return [
            number(document, "comm", at, "count", form="count"),
            number(document, "comm", at, "bytes", form="size"),
            number(document, "comm", at, "transfer_ns", form="duration"),
            number(document, "comm", at, "wait_ns", form="duration"),
            number(document, "comm", at, "exposed_ns", form="duration"),
            number(document, "comm", at, "bus_bandwidth_bytes_per_second", form="gigabytes"),
        ]

    rows = [[one["axis"], one["op"], *cells(at)] for at, one in enumerate(document["comm"] or ())]
    return table(HEADS, rows, numbers_from=2)


def _sizes(operations: Sequence[AxisOperation]) -> Component:
    rows = [
        [
            of.axis,
            of.operation,
            size(one.most_bytes),
            count(one.count),
            duration(one.transfer_ns),
            duration(one.transfer_ns / one.count),
            gigabytes_per_second(one.bus_bandwidth),
        ]
        for of in operations
        for one in of.sizes
    ]
    return table(SIZE_HEADS, rows, numbers_from=2) if rows else absent("Of no message is known how large it was.")


PAGE = Page(slug="communication", title="Communication", needs=Needs.ANALYSIS, render=render)
