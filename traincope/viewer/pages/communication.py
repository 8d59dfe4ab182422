"""Communication: what was sent on which axis and called from where, how long it took, and who waited in which group."""

from collections.abc import Sequence

from dash import dcc, html
from dash.development.base_component import Component

from traincope.analysis import Analysis, AxisOperation, Called, RankCalls, all_calls
from traincope.figures.icicle import communication_difference, communication_icicle
from traincope.figures.sent import NO_PLACE, without_places
from traincope.figures.wait_matrix import wait_matrix
from traincope.units import count, duration, gigabytes_per_second, size
from traincope.viewer.components import absent, field, parameter, section, table
from traincope.viewer.numbers import number
from traincope.viewer.pages.page import Asked, Needs, Page

HEADS = ("axis", "operation", "count", "bytes", "transfer", "waiting", "exposed", "bus GB/s")
OF, AGAINST, ALL_RANKS = "of", "against", "all ranks"
MOST_RANKS = 512
BLOCKS_MISSING = (
    "Which block of the model called was not recorded, for that needs level 2: a call is known by its phase, pipeline "
    "action or span. traincope.run(level=2) or TRAINCOPE_LEVEL=2 records blocks; a running job begins to when 2 is "
    "written to the file level in its run directory."
)
NOT_IN_BLOCKS = "The model's blocks were recorded, and no collective was called within one."
SITE_HEADS = ("called from", "what", "waiting", "exposed", "transfer")
MOST_SITES = 12
SIZE_HEADS = ("axis", "operation", "up to", "count", "transfer", "mean transfer", "bus GB/s")


def render(asked: Asked) -> Sequence[Component]:
    analysis = asked.analysis
    if not analysis.comm:
        return [absent(_why_not(asked))]
    shown = _calls(asked) if analysis.ledger.rank_steps else []
    if analysis.group_waits:
        steps = max((rank.num_counted for rank in analysis.ledger.ranks), default=0)
        shown.append(
            section(
                "Who waited in which group",
                asked.graph(wait_matrix(analysis.group_waits, steps=max(steps, 1))),
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


def _calls(asked: Asked) -> list[Component]:
    """Of all ranks or one, or of one against another."""
    ranks = {rank.rank: rank for rank in asked.analysis.calls if rank.num_steps}
    of, against = (ranks.get(-1 if wanted is None else wanted) for wanted in map(asked.view.whole, (OF, AGAINST)))
    drawn = _compared(asked, of, against) if against is not None else _alone(asked, of)
    where = [] if any(rank.in_blocks for rank in ranks.values()) else [absent(_no_blocks(asked))]
    if len(ranks) < 2:
        return [drawn, *where]
    choices = [
        field("of", _choice(OF, list(ranks), of, none=ALL_RANKS)),
        field("against", _choice(AGAINST, list(ranks), against, none="nobody")),
    ]
    return [html.Div(choices, className="controls"), drawn, *where]


def _no_blocks(asked: Asked) -> str:
    """Why no call is told of a block of the model."""
    probes = asked.document["recorder"]["probes"]
    recorded = any(probe["name"] == "modules" and probe["state"].startswith("on") for probe in probes)
    return NOT_IN_BLOCKS if recorded else BLOCKS_MISSING


def _alone(asked: Asked, of: RankCalls | None) -> Component:
    calls, rank_steps = _sums(asked.analysis, of)
    drawn = communication_icicle(calls, rank_steps=rank_steps)
    note = "axis, operation, where it was called, and what of it was waiting, exposed, hidden; click a box to open it"
    longest = _call_sites(calls, rank_steps=rank_steps)
    return section(f"Of {'one rank' if of is None else _name(of)} in one step", asked.graph(drawn), *longest, note=note)


def _call_sites(calls: Sequence[Called], *, rank_steps: int) -> list[Component]:
    """Those where a rank stood still longest; none where no place is known."""
    if not any(one.place for one in calls):
        return []
    rows = [
        [
            one.place or NO_PLACE,
            f"{one.axis} {one.operation}",
            *(duration(ns / rank_steps) for ns in (one.wait_ns, one.exposed_ns, one.transfer_ns)),
        ]
        for one in sorted(calls, key=lambda one: (-one.exposed_ns, -one.transfer_ns))[:MOST_SITES]
    ]
    return [table(SITE_HEADS, rows, numbers_from=2)]


def _compared(asked: Asked, of: RankCalls | None, against: RankCalls) -> Component:
    (calls, steps), (theirs, their_steps) = _sums(asked.analysis, of), _sums(asked.analysis, against)
    names = _name(of), _name(against)
    drawn = communication_difference(calls, theirs, rank_steps=(steps, their_steps), names=names)
    note = f"as wide as the mean of both, orange where {names[0]} took longer, blue where {names[1]} did"
    return section(f"{names[0]} against {names[1]}, in one step".capitalize(), asked.graph(drawn), note=note)


def _choice(name: str, ranks: Sequence[int], chosen: RankCalls | None, *, none: str) -> Component:
    options = [{"label": f"rank {rank}", "value": str(rank)} for rank in ranks[:MOST_RANKS]]
    value = None if chosen is None else str(chosen.rank)
    return dcc.Dropdown(id=parameter(name), options=options, value=value, placeholder=none, className="faults")


def _sums(analysis: Analysis, of: RankCalls | None) -> tuple[Sequence[Called], int]:
    """And how many steps of a rank they hold."""
    if of is not None:
        return of.calls, of.num_steps
    return all_calls(analysis.calls) or without_places(analysis.comm), analysis.ledger.rank_steps


def _name(of: RankCalls | None) -> str:
    return ALL_RANKS if of is None else f"rank {of.rank}"


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
