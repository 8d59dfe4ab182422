"""`traincope plan schedule`: a drawing of a pipeline schedule, and its bubble."""

import argparse
import json
from typing import TypedDict

from rich.console import Console

from traincope.cli.plan.pipeline_size import add_size, stage_work, times
from traincope.cli.screen import make_console
from traincope.errors import UsageError
from traincope.lines import Trimmed, text
from traincope.plan.pipeline.bubble import FORMULAS, bubble_ratio
from traincope.plan.pipeline.orders import SCHEDULES, Shape, orders, resolve_schedule
from traincope.plan.pipeline.schedule import Timetable, timetable
from traincope.report.text.timetable import Drawing
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
    """Length of the step. Same unit as the given times, as for starts and ends."""
    bubble_ratio: float
    """Idle share of total time in the simulation."""
    bubble_over_ideal: float
    formula_ratio: float | None
    """Idle share of total time by formula; null if no formula covers this size, these times and unequal stages."""
    timetable: list[PlannedRank]


class PlanSchedule:
    name = "schedule"
    help = "draw a pipeline schedule, rank by rank, with its bubble"
    example = "traincope plan schedule zb-v --pp 4 --microbatches 8"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "schedule", choices=tuple(SCHEDULES), metavar="SCHEDULE", help=f"one of {', '.join(SCHEDULES)}"
        )
        add_size(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        name, chunks = resolve_schedule(arguments.schedule, chunks=arguments.virtual)
        shape = Shape(ranks=arguments.pp, microbatches=arguments.microbatches, chunks=chunks)
        durations = times(arguments)
        work = stage_work(arguments, schedule=name, shape=shape)
        planned = timetable(orders(name, shape), durations, transfer=arguments.transfer, work=work)
        formula = None if work else bubble_ratio(name, shape, durations)
        if arguments.format == "json":
            print(json.dumps(_answer(name, shape, planned, formula=formula), indent=2))
        else:
            _draw(name, shape, planned, formula=formula, console=make_console())
        return 0


def _answer(name: str, shape: Shape, planned: Timetable, *, formula: float | None) -> Answer:
    return Answer(
        schedule=name,
        ranks=shape.ranks,
        microbatches=shape.microbatches,
        virtual=shape.chunks,
        span=planned.span / planned.ticks,
        bubble_ratio=planned.idle_ratio,
        bubble_over_ideal=planned.idle_over_ideal,
        formula_ratio=formula,
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


def _draw(name: str, shape: Shape, planned: Timetable, *, formula: float | None, console: Console) -> None:
    drawing = Drawing(timetable=planned, min_columns=1)
    if drawing.min_width > console.width:
        raise UsageError(
            f"the drawing needs {drawing.min_width} columns and the terminal has {console.width}; "
            "make the terminal wider, give fewer microbatches, or use --format json"
        )
    spread = "" if shape.chunks == 1 else f" of {shape.chunks} stages"
    size = f"{count(shape.ranks, 'rank')}{spread}, {shape.microbatches} microbatch{'es' * (shape.microbatches > 1)}"
    console.print(f"{SCHEDULES[name].title}: {size}", highlight=False, style="bold")
    console.print(Trimmed(drawing), end="")
    line = f"bubble: {share(planned.idle_ratio)} of total time, {share(planned.idle_over_ideal)} of ideal time"
    console.print(Trimmed(text(f"{line}; {_formula(name, formula)}")), end="")


def _formula(name: str, ratio: float | None) -> str:
    if ratio is None:
        return "no formula for this size and these times"
    return f"by formula {share(ratio)}, {FORMULAS[name].text} ({FORMULAS[name].source})"
