"""`traincope plan schedule`: a pipeline schedule drawn as papers draw it, and what of its time is bubble."""

import argparse
import json
from typing import TypedDict

from rich.console import Console

from traincope.cli.pipeline_size import add_size, times
from traincope.errors import UsageError
from traincope.plan.actions import Times
from traincope.plan.bubble import FORMULAS, bubble_ratio
from traincope.plan.orders import SCHEDULES, Shape, find, orders
from traincope.plan.schedule import Timetable, timetable
from traincope.report.timetable import Drawing
from traincope.report.trimmed import Trimmed
from traincope.units import count, share


class PlannedAction(TypedDict):
    kind: str
    stage: int
    microbatch: int
    start: float
    end: float


class PlannedRank(TypedDict):
    rank: int
    stages: list[int]
    actions: list[PlannedAction]


class Answer(TypedDict):
    schedule: str
    ranks: int
    microbatches: int
    virtual: int
    span: float
    """Of the step, in the unit of the times, as are starts and ends."""
    bubble_ratio: float
    """Idle share of total time, played out."""
    bubble_over_ideal: float
    formula_ratio: float | None
    """Idle share of total time by formula; null where there is none for this size and these times."""
    timetable: list[PlannedRank]


class PlanSchedule:
    name = "schedule"
    help = "draw a pipeline schedule, rank by rank, with its bubble"
    example = "traincope plan schedule zb-v --pp 4 --microbatches 8"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("schedule", choices=tuple(SCHEDULES), metavar="SCHEDULE", help=f"{', '.join(SCHEDULES)}")
        add_size(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        name, chunks = find(arguments.schedule, chunks=arguments.virtual)
        shape = Shape(ranks=arguments.pp, microbatches=arguments.microbatches, chunks=chunks)
        durations = times(arguments)
        planned = timetable(orders(name, shape), durations, transfer=arguments.transfer)
        if arguments.format == "json":
            print(json.dumps(_answer(name, shape, durations, planned), indent=2))
        else:
            _draw(name, shape, durations, planned, console=Console())
        return 0


def _answer(name: str, shape: Shape, durations: Times, planned: Timetable) -> Answer:
    return Answer(
        schedule=name,
        ranks=shape.ranks,
        microbatches=shape.microbatches,
        virtual=shape.chunks,
        span=planned.span / planned.ticks,
        bubble_ratio=planned.idle_ratio,
        bubble_over_ideal=planned.idle_over_ideal,
        formula_ratio=bubble_ratio(name, shape, durations),
        timetable=[
            PlannedRank(
                rank=rank,
                stages=list(SCHEDULES[name].placement(rank, shape)),
                actions=[
                    PlannedAction(
                        kind=ran.action.kind,
                        stage=ran.action.stage,
                        microbatch=ran.action.microbatch,
                        start=ran.start / planned.ticks,
                        end=ran.end / planned.ticks,
                    )
                    for ran in row
                ],
            )
            for rank, row in planned.rows.items()
        ],
    )


def _draw(name: str, shape: Shape, durations: Times, planned: Timetable, *, console: Console) -> None:
    drawing = Drawing(timetable=planned, least=1)
    if drawing.needs > console.width:
        raise UsageError(
            f"a drawing needs {drawing.needs} columns and the terminal has {console.width}; "
            "make it wider, ask for fewer microbatches, or for --format json"
        )
    spread = "" if shape.chunks == 1 else f" of {shape.chunks} stages"
    size = f"{count(shape.ranks, 'rank')}{spread}, {shape.microbatches} microbatch{'es' * (shape.microbatches > 1)}"
    console.print(f"{SCHEDULES[name].title}: {size}", highlight=False, style="bold")
    console.print(Trimmed(drawing), end="")
    line = f"bubble: {share(planned.idle_ratio)} of total time, {share(planned.idle_over_ideal)} of ideal time"
    console.print(f"{line}; {_formula(name, shape, durations)}", highlight=False, markup=False, soft_wrap=True)


def _formula(name: str, shape: Shape, durations: Times) -> str:
    ratio = bubble_ratio(name, shape, durations)
    if ratio is None:
        return "no formula for this size and these times"
    return f"by formula {share(ratio)}, {FORMULAS[name].text} ({FORMULAS[name].source})"
