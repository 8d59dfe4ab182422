"""A pipeline's step: a row per rank, a box per action; the recorded schedule above, its theory below."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import plotly.graph_objects as go

from traincope.analysis import Gap, Schedule
from traincope.figures.drawing.canvas import THIN, canvas, named_rows, stacked
from traincope.palette import ACTIONS, colour
from traincope.plan.pipeline.actions import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD
from traincope.plan.pipeline.schedule import TimedAction, Timetable
from traincope.units import milliseconds

NAMES: Mapping[str, str] = {
    FORWARD: "F forward",
    BACKWARD: "B backward",
    BACKWARD_INPUT: "I input's gradient",
    BACKWARD_WEIGHT: "W weights' gradient",
}
IDLE = "#B4BBC5"
"""Background of gaps, which are hatched in the colour of their term."""
PATTERNS: Mapping[str, str] = {"bubble.schedule": "/", "bubble.imbalance": "x", "bubble.jitter": "."}
GAPS: Mapping[str, str] = {
    "bubble.schedule": "idle: schedule",
    "bubble.imbalance": "idle: imbalance",
    "bubble.jitter": "idle: jitter and transfers",
}
ROW, AROUND = 32, 120
"""Pixels of a rank's row, and of axis and legend."""
FEW = 8
"""Rows of a planned schedule that are as high as those of a recorded one."""
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


def pipeline_schedule(recorded: Schedule, theory: Schedule | None) -> go.Figure:
    """Both schedules on one ms scale; `theory` is None where the order cannot be replayed.

    A box shows its microbatch, with one prime for a rank's second stage and two for its third.
    """
    drawn = [("recorded", recorded), *([("theory", theory)] if theory else [])]
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
    return figure.update_xaxes(title={"text": "ms since the step began"}, showgrid=False, zeroline=False)


def planned_schedule(planned: Timetable) -> go.Figure:
    """A planned schedule on a scale of ms; boxes as in `pipeline_schedule`."""
    ranks = list(planned.rows)
    return canvas(
        list(_traces(Schedule(timetable=planned, gaps={}), set())),
        height=len(ranks) * (ROW if len(ranks) <= FEW else THIN) + AROUND,
        barmode="overlay",
        bargap=0.12,
        xaxis={"title": {"text": "ms of the pipeline"}, "showgrid": False, "zeroline": False},
        yaxis=named_rows([f"rank {rank}" for rank in ranks]),
    )


def _traces(schedule: Schedule, named: set[str]) -> Iterator[go.Bar]:
    """One trace per kind of action and per term of gaps; a name enters the legend once."""
    actions: dict[str, list[_Box]] = defaultdict(list)
    for at, (rank, row) in enumerate(schedule.timetable.rows.items()):
        stages = sorted({ran.action.stage for ran in row})
        for ran in row:
            actions[ran.action.kind].append(_action(at, rank, ran, chunk=stages.index(ran.action.stage)))
    gaps: dict[str, list[_Box]] = defaultdict(list)
    for at, (rank, idle) in enumerate(schedule.gaps.items()):
        for gap in idle:
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


def _action(row: int, rank: int, ran: TimedAction, *, chunk: int) -> _Box:
    action = ran.action
    title = f"rank {rank}, stage {action.stage}: {action.kind}{action.microbatch}"
    hover = f"{title}<br>{milliseconds(ran.end - ran.start)} ms, starts at {milliseconds(ran.start)} ms"
    return _Box(row=row, start_ns=ran.start, end_ns=ran.end, text=f"{action.microbatch}{PRIME * chunk}", hover=hover)


def _gap(row: int, rank: int, gap: Gap) -> _Box:
    hover = f"rank {rank}, {GAPS[gap.term]}<br>{milliseconds(gap.end_ns - gap.start_ns)} ms"
    return _Box(row=row, start_ns=gap.start_ns, end_ns=gap.end_ns, text="", hover=hover)
