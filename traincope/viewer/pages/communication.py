"""Communication page: time by axis, operation and call site, waits by group, and bandwidth by message size."""

from collections.abc import Sequence

from dash import dcc, html
from dash.development.base_component import Component

from traincope.analysis import Analysis, AxisOperation, CallSite, RankCalls, all_calls
from traincope.figures.ranks.communication_tree import NO_PLACE, without_places
from traincope.figures.ranks.icicle import communication_difference, communication_icicle
from traincope.figures.ranks.wait_matrix import wait_matrix
from traincope.units import count, duration, gigabytes_per_second, size
from traincope.viewer.components import absent, field, parameter, section, table
from traincope.viewer.numbers import number
from traincope.viewer.pages.page import Asked, Needs, Page

HEADS = ("axis", "operation", "count", "bytes", "transfer", "wait", "exposed", "bus GB/s")
RANK, AGAINST, ALL_RANKS, NO_RANK = "of", "against", "all ranks", "no comparison"
MAX_RANKS = 512
BLOCKS_MISSING = (
    "Call sites show the phase, pipeline action or span. The block of the model that made a call needs level 2: "
    "use traincope.run(level=2) or TRAINCOPE_LEVEL=2, or write 2 to the file `level` in the run directory of a "
    "running job."
)
NOT_IN_BLOCKS = "The model's blocks were recorded, but no block called a collective."
SITE_HEADS = ("call site", "operation", "wait", "exposed", "transfer")
MAX_SITES = 12
SIZE_HEADS = ("axis", "operation", "message size up to", "count", "transfer", "mean transfer", "bus GB/s")


def render(asked: Asked) -> Sequence[Component]:
    analysis = asked.analysis
    if not analysis.comm:
        return [absent(_why_not(asked))]
    shown = _calls(asked) if analysis.ledger.rank_steps else []
    if analysis.group_waits:
        steps = max((rank.num_counted for rank in analysis.ledger.ranks), default=0)
        shown.append(
            section(
                "Wait of each rank in each group",
                asked.graph(wait_matrix(analysis.group_waits, steps=max(steps, 1))),
                note="ms per step that a rank waited until the last member of the group arrived",
            )
        )
    return [
        *shown,
        section(
            "By operation",
            _table(asked),
            note="sums over all ranks and counted steps",
        ),
        section(
            "By message size",
            _sizes(analysis.comm),
            note="sums over all ranks and counted steps; a row holds messages of up to its size and over half of it",
        ),
    ]


def _calls(asked: Asked) -> list[Component]:
    """Calls of all ranks or of one, or a comparison of two."""
    ranks = {rank.rank: rank for rank in asked.analysis.calls if rank.num_steps}
    chosen, against = (ranks.get(-1 if at is None else at) for at in map(asked.view.whole, (RANK, AGAINST)))
    drawn = _compared(asked, chosen, against) if against is not None else _alone(asked, chosen)
    hint = [] if any(rank.in_blocks for rank in ranks.values()) else [absent(_no_blocks(asked))]
    if len(ranks) < 2:
        return [drawn, *hint]
    choices = [
        field("rank", _choice(RANK, list(ranks), chosen, none=ALL_RANKS)),
        field("compare with", _choice(AGAINST, list(ranks), against, none=NO_RANK)),
    ]
    return [html.Div(choices, className="controls"), drawn, *hint]


def _no_blocks(asked: Asked) -> str:
    """Why no call site is a block of the model."""
    probes = asked.document["recorder"]["probes"]
    recorded = any(probe["name"] == "modules" and probe["state"].startswith("on") for probe in probes)
    return NOT_IN_BLOCKS if recorded else BLOCKS_MISSING


def _alone(asked: Asked, chosen: RankCalls | None) -> Component:
    calls, rank_steps = _sums(asked.analysis, chosen)
    drawn = communication_icicle(calls, rank_steps=rank_steps)
    note = "axis, operation, call site, and its wait, exposed and hidden transfer; click a box to zoom in"
    longest = _call_sites(calls, rank_steps=rank_steps)
    whose = "mean of all ranks" if chosen is None else _name(chosen)
    return section(f"Communication per step, {whose}", asked.graph(drawn), *longest, note=note)


def _call_sites(calls: Sequence[CallSite], *, rank_steps: int) -> list[Component]:
    """The call sites with the most exposed time; empty where no call site is known."""
    if not any(call.place for call in calls):
        return []
    rows = [
        [
            call.place or NO_PLACE,
            f"{call.axis} {call.operation}",
            *(
                duration(None if ns is None else ns / rank_steps)
                for ns in (call.known_wait_ns, call.exposed_ns, call.transfer_ns)
            ),
        ]
        for call in sorted(calls, key=lambda call: (-call.exposed_ns, -call.transfer_ns))[:MAX_SITES]
    ]
    return [table(SITE_HEADS, rows, numbers_from=2)]


def _compared(asked: Asked, first: RankCalls | None, second: RankCalls) -> Component:
    (calls, steps), (others, other_steps) = _sums(asked.analysis, first), _sums(asked.analysis, second)
    names = _name(first), _name(second)
    drawn = communication_difference(calls, others, rank_steps=(steps, other_steps), names=names)
    note = f"width: mean of both; orange: {names[0]} takes longer; blue: {names[1]} takes longer"
    title = f"{names[0]} compared with {names[1]}, per step".capitalize()
    return section(title, asked.graph(drawn), note=note)


def _choice(name: str, ranks: Sequence[int], chosen: RankCalls | None, *, none: str) -> Component:
    options = [{"label": f"rank {rank}", "value": str(rank)} for rank in ranks[:MAX_RANKS]]
    value = None if chosen is None else str(chosen.rank)
    return dcc.Dropdown(id=parameter(name), options=options, value=value, placeholder=none, className="faults")


def _sums(analysis: Analysis, chosen: RankCalls | None) -> tuple[Sequence[CallSite], int]:
    """The calls of a rank or of all, and the number of rank-steps in their sums."""
    if chosen is not None:
        return chosen.calls, chosen.num_steps
    return all_calls(analysis.calls) or without_places(analysis.comm), analysis.ledger.rank_steps


def _name(chosen: RankCalls | None) -> str:
    return ALL_RANKS if chosen is None else f"rank {chosen.rank}"


def _why_not(asked: Asked) -> str:
    if asked.document["run"]["world_size"] == 1:
        return "The run has one rank, so there is no communication."
    if asked.document["run"]["imported"]:
        return "The imported kernel traces have no steps with communication. The Hardware page shows all kernels."
    return "No collective was recorded in a counted step. `traincope doctor RUN` lists the probes that were on."


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

    rows = [[row.axis, row.operation, *cells(at)] for at, row in enumerate(asked.analysis.comm)]
    return table(HEADS, rows, numbers_from=2)


def _sizes(operations: Sequence[AxisOperation]) -> Component:
    rows = [
        [
            operation.axis,
            operation.operation,
            size(messages.max_bytes),
            count(messages.count),
            duration(messages.transfer_ns),
            duration(messages.transfer_ns / messages.count),
            gigabytes_per_second(messages.bus_bandwidth),
        ]
        for operation in operations
        for messages in operation.sizes
    ]
    return table(SIZE_HEADS, rows, numbers_from=2) if rows else absent("No message size was recorded.")


PAGE = Page(slug="communication", title="Communication", needs=Needs.ANALYSIS, render=render)
