"""A pipeline's step as papers draw it: a row a rank, a box an action; what ran above, its theory below."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import plotly.graph_objects as go

from traincope.analysis import Gap, Schedule
from traincope.figures.canvas import named_rows, stacked
from traincope.palette import ACTIONS, colour
from traincope.plan.actions import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD
from traincope.plan.schedule import Ran
from traincope.units import milliseconds

NAMES: Mapping[str, str] = {
    FORWARD: "F forward",
    BACKWARD: "B backward",
    BACKWARD_INPUT: "I input's gradient",
    BACKWARD_WEIGHT: "W weights' gradient",
}
IDLE = "#B4BBC5"
"""Of gaps, hatched in the colour of their term."""
PATTERNS: Mapping[str, str] = {"bubble.schedule": "/", "bubble.imbalance": "x", "bubble.jitter": "."}
GAPS: Mapping[str, str] = {
    "bubble.schedule": "idle: the schedule's own",
    "bubble.imbalance": "idle: uneven stages",
    "bubble.jitter": "idle: jitter, transfers",
}
MOST_BOXES = 4_000
"""More would be no boxes but noise, and slow."""
ROW, AROUND = 32, 120
"""Pixels of a rank, and of axis and legend."""
BETWEEN = 0.08
PRIME = "'"
BLACK_ON = "#0b0f14"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Box:
    row: int
    start_ns: int
    end_ns: int
    text: str
    hover: str


def fits(schedule: Schedule) -> bool:
    """Whether it has few enough boxes to be drawn."""
    return sum(map(len, schedule.timetable.rows.values())) <= MOST_BOXES


def pipeline_schedule(recorded: Schedule, theory: Schedule | None) -> go.Figure:
    """Both on one scale of ms; `theory` None where the order cannot be replayed.

    A box is named by its microbatch, of a rank's second stage with a prime, of its third with two.
    """
    drawn = [("recorded", recorded), *([("in theory", theory)] if theory else [])]
    named: set[str] = set()
    ranks = list(recorded.timetable.rows)
    figure = stacked(
        [list(_traces(schedule, named)) for _, schedule in drawn],
        between=BETWEEN,
        height=len(drawn) * len(ranks) * ROW + AROUND,
        barmode="overlay",
        bargap=0.12,
    )
    for axis, (name, _) in zip(figure.select_yaxes(), drawn, strict=True):
        axis.update(**named_rows([f"rank {rank}" for rank in ranks]), title={"text": name})
    return figure.update_xaxes(title={"text": "ms from the step's begin"}, showgrid=False, zeroline=False)


def _traces(schedule: Schedule, named: set[str]) -> Iterator[go.Bar]:
    """One a kind of action and a term of gaps; a name enters the legend once."""
    actions: dict[str, list[_Box]] = defaultdict(list)
    for at, (rank, row) in enumerate(schedule.timetable.rows.items()):
        stages = sorted({ran.action.stage for ran in row})
        for ran in row:
            actions[ran.action.kind].append(_action(at, rank, ran, chunk=stages.index(ran.action.stage)))
    gaps: dict[str, list[_Box]] = defaultdict(list)
    for at, (rank, found) in enumerate(schedule.gaps.items()):
        for gap in found:
            gaps[gap.term].append(_gap(at, rank, gap))
    for term, name in GAPS.items():
        pattern = {"shape": PATTERNS[term], "fgcolor": colour(term), "bgcolor": IDLE, "size": 6, "solidity": 0.4}
        marker: dict[str, object] = {"color": IDLE, "pattern": pattern}
        yield from _bars(gaps.get(term, []), name, marker, named)
    for kind, name in NAMES.items():
        marker = {"color": ACTIONS[kind], "line": {"color": "rgba(255,255,255,0.85)", "width": 1}}
        yield from _bars(actions.get(kind, []), name, marker, named)


def _bars(boxes: list[_Box], name: str, marker: Mapping[str, object], named: set[str]) -> Iterator[go.Bar]:
    if not boxes:
        return
    yield go.Bar(
        name=name,
        legendgroup=name,
        showlegend=name not in named,
        orientation="h",
        y=[box.row for box in boxes],
        base=[box.start_ns / 1e6 for box in boxes],
        x=[(box.end_ns - box.start_ns) / 1e6 for box in boxes],
        marker=marker,
        text=[box.text for box in boxes],
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        textfont={"color": BLACK_ON},
        customdata=[box.hover for box in boxes],
        hovertemplate="%{customdata}<extra></extra>",
    )
    named.add(name)


def _action(row: int, rank: int, ran: Ran, *, chunk: int) -> _Box:
    action = ran.action
    told = f"rank {rank}, stage {action.stage}: {action.kind}{action.microbatch}"
    hover = f"{told}<br>{milliseconds(ran.end - ran.start)} ms, from {milliseconds(ran.start)} on"
    return _Box(row=row, start_ns=ran.start, end_ns=ran.end, text=f"{action.microbatch}{PRIME * chunk}", hover=hover)


def _gap(row: int, rank: int, gap: Gap) -> _Box:
    hover = f"rank {rank}, {GAPS[gap.term]}<br>{milliseconds(gap.end_ns - gap.start_ns)} ms"
    return _Box(row=row, start_ns=gap.start_ns, end_ns=gap.end_ns, text="", hover=hover)
