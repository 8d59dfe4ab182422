"""Communication page: the section of the report, and above it the calls of one rank, or of two compared."""

from collections.abc import Sequence

from dash import dcc, html
from dash.development.base_component import Component

from traincope.analysis import Analysis, CallSite, RankCalls, all_calls, without_places
from traincope.figures.ranks.icicle import communication_difference, communication_icicle
from traincope.report.sections.communication import communication
from traincope.viewer.components import absent, field, parameter, section
from traincope.viewer.pages.page import Asked, Needs, Page
from traincope.viewer.sections import rendered

RANK, AGAINST, ALL_RANKS, NO_RANK = "of", "against", "all ranks", "no comparison"
MAX_RANKS = 512
BLOCKS_MISSING = (
    "Call sites show the phase, pipeline action or span. The block of the model that made a call needs level 2: "
    "use traincope.run(level=2) or TRAINCOPE_LEVEL=2, or write 2 to the file `level` in the run directory of a "
    "running job."
)
NOT_IN_BLOCKS = "The model's blocks were recorded, but no block called a collective."


def render(asked: Asked) -> Sequence[Component]:
    analysis = asked.analysis
    chosen = _chosen(asked) if analysis.comm and analysis.ledger.rank_steps else []
    return [*chosen, rendered(communication(asked.source), asked)]


def _chosen(asked: Asked) -> list[Component]:
    """Calls of one rank, or of two compared, below their controls."""
    ranks = {rank.rank: rank for rank in asked.analysis.calls if rank.num_steps}
    chosen, against = (ranks.get(-1 if at is None else at) for at in map(asked.view.whole, (RANK, AGAINST)))
    hint = [] if any(rank.in_blocks for rank in ranks.values()) else [absent(_no_blocks(asked))]
    if len(ranks) < 2:
        return hint
    choices = [
        field("rank", _choice(RANK, list(ranks), chosen, none=ALL_RANKS)),
        field("compare with", _choice(AGAINST, list(ranks), against, none=NO_RANK)),
    ]
    drawn = [_compared(asked, chosen, against)] if against else [_alone(asked, chosen)] if chosen else []
    return [html.Div(choices, className="controls"), *drawn, *hint]


def _no_blocks(asked: Asked) -> str:
    """Why no call site is a block of the model."""
    probes = asked.document["recorder"]["probes"]
    recorded = any(probe["name"] == "modules" and probe["state"].startswith("on") for probe in probes)
    return NOT_IN_BLOCKS if recorded else BLOCKS_MISSING


def _alone(asked: Asked, chosen: RankCalls) -> Component:
    drawn = communication_icicle(chosen.calls, rank_steps=chosen.num_steps)
    return section(f"Communication per step, {_name(chosen)}", asked.graph(drawn), note="click a box to zoom in")


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


PAGE = Page(slug="communication", title="Communication", needs=Needs.ANALYSIS, render=render)
