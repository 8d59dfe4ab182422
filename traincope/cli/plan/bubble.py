"""`traincope plan bubble`: the bubble of every schedule at one size, by formula and by simulation."""

import argparse
from typing import TypedDict

from rich.console import Console
from rich.text import Text

from traincope.cli.answers import print_answer
from traincope.cli.plan.pipeline_size import add_size, stage_work, times
from traincope.lines import Trimmed, indented, table
from traincope.plan.pipeline.actions import Times
from traincope.plan.pipeline.bubble import FORMULA_ONLY, FORMULAS, bubble_ratio, formula_only_ratio
from traincope.plan.pipeline.orders import SCHEDULES, Shape, orders
from traincope.plan.pipeline.schedule import timetable
from traincope.units import share

HEADS = ("schedule", "stages per rank", "formula", "of ideal", "simulated", "of ideal")


class Answer(TypedDict):
    """One schedule. A ratio is null if it has no formula, or if it cannot have this size."""

    schedule: str
    virtual: int
    bubble_ratio: float | None
    """Idle share of total time by formula. For a schedule with a formula only: idle share of a rank's active time."""
    bubble_over_ideal: float | None
    """Idle time / bubble-free time, by formula."""
    played_out_ratio: float | None
    """Idle share of total time in the simulation of its order with these times and transfers."""
    played_out_over_ideal: float | None
    formula: str | None
    """Formula of a rank's idle time. It begins with `formula only` if the engine does not run the schedule."""
    source: str | None
    refusal: str | None
    """Requirement that this size does not meet; null if the schedule can have it."""


class PlanBubble:
    name = "bubble"
    help = "compare the bubble of all pipeline schedules at one size, by formula and by simulation"
    example = "traincope plan bubble --pp 4 --microbatches 8"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_size(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        chunks = 1 if arguments.virtual is None else arguments.virtual
        size = Shape(ranks=arguments.pp, microbatches=arguments.microbatches, chunks=chunks)
        durations = times(arguments)
        answers = [_answer(name, size, durations, arguments) for name in SCHEDULES]
        answers += [_planned(name, size, durations, arguments) for name in FORMULA_ONLY]
        print_answer(answers, _show, format=arguments.format)
        return 0


def _answer(name: str, size: Shape, durations: Times, arguments: argparse.Namespace) -> Answer:
    """One schedule with the requested stages per rank, or the nearest number that it can have."""
    schedule = SCHEDULES[name]
    chunks = max(size.chunks, schedule.min_chunks)
    chunks = min(chunks, schedule.max_chunks or chunks)
    shape = Shape(ranks=size.ranks, microbatches=size.microbatches, chunks=chunks)
    refusal = schedule.refusal(shape)
    formula = FORMULAS.get(name)
    work = {} if refusal else stage_work(arguments, schedule=name, shape=shape)
    by_formula = None if refusal or work else bubble_ratio(name, shape, durations)
    played_out = None if refusal else timetable(orders(name, shape), durations, transfer=arguments.transfer, work=work)
    return Answer(
        schedule=name,
        virtual=chunks,
        bubble_ratio=by_formula,
        bubble_over_ideal=None if by_formula is None else by_formula / (1 - by_formula),
        played_out_ratio=played_out.idle_ratio if played_out else None,
        played_out_over_ideal=played_out.idle_over_ideal if played_out else None,
        formula=formula.text if formula else None,
        source=formula.source if formula else None,
        refusal=refusal,
    )


def _planned(name: str, size: Shape, durations: Times, arguments: argparse.Namespace) -> Answer:
    """A schedule with a formula only, with one stage per rank."""
    shape = Shape(ranks=size.ranks, microbatches=size.microbatches)
    uneven = stage_work(arguments, schedule="1f1b", shape=shape)
    ratio = None if uneven else formula_only_ratio(name, shape, durations, transfer=arguments.transfer)
    return Answer(
        schedule=name,
        virtual=1,
        bubble_ratio=ratio,
        bubble_over_ideal=None if ratio is None else ratio / (1 - ratio),
        played_out_ratio=None,
        played_out_over_ideal=None,
        formula=f"formula only: {FORMULA_ONLY[name].text}",
        source=FORMULA_ONLY[name].source,
        refusal=None,
    )


def _show(answers: list[Answer], console: Console) -> None:
    console.print("BUBBLE  share of total and of ideal time, by formula and by simulation", style="bold")
    rows = table(*HEADS)
    for answer in answers:
        by_formula = answer["bubble_ratio"], answer["bubble_over_ideal"]
        played_out = answer["played_out_ratio"], answer["played_out_over_ideal"]
        rows.add_row(f"    {answer['schedule']}", str(answer["virtual"]), *map(share, (*by_formula, *played_out)))
    console.print(Trimmed(rows), end="")
    lines = (Text(f"{answer['schedule']:<12} {_formula_text(answer)}") for answer in answers)
    console.print("\nIDLE TIME OF A RANK  P ranks, M microbatches; times of one stage, B = I + W:", style="bold")
    console.print("    F forward, I backward for inputs, W backward for weights")
    console.print(Trimmed(indented(lines)), end="")


def _formula_text(answer: Answer) -> str:
    if answer["refusal"] is not None:
        return answer["refusal"]
    return "no formula; only simulated" if answer["formula"] is None else f"{answer['formula']}  [{answer['source']}]"
