"""`traincope plan bubble`: the bubble of every schedule at one size, by formula and played out."""

import argparse
from typing import TypedDict

from rich.console import Console
from rich.text import Text

from traincope.cli.answers import tell
from traincope.cli.pipeline_size import add_size, times
from traincope.plan.actions import Times
from traincope.plan.bubble import FORMULAS, PLANNED, bubble_over_ideal, bubble_ratio, planned_ratio
from traincope.plan.orders import SCHEDULES, Shape, orders
from traincope.plan.schedule import timetable
from traincope.report.tables import indented, table
from traincope.report.trimmed import Trimmed
from traincope.units import share

HEADS = ("schedule", "stages a rank", "of total", "of ideal", "played out", "of ideal")


class Answer(TypedDict):
    """One schedule. Ratios are null where there is no formula, or it cannot have this size."""

    schedule: str
    virtual: int
    bubble_ratio: float | None
    """Idle share of total time, by formula; of a schedule that nothing here runs, of a rank's time in its actions."""
    bubble_over_ideal: float | None
    """Idle over bubble-free time, by formula."""
    played_out_ratio: float | None
    """Idle share of total time of its order with these times, transfers included."""
    played_out_over_ideal: float | None
    formula: str | None
    """A rank's idle time; begins with `formula only` where nothing here runs the schedule."""
    source: str | None
    refusal: str | None
    """What it would need to have this size; null where it can."""


class PlanBubble:
    name = "bubble"
    help = "the bubble of every pipeline schedule at one size: by formula, in both conventions, and played out"
    example = "traincope plan bubble --pp 4 --microbatches 8"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_size(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        chunks = 1 if arguments.virtual is None else arguments.virtual
        size = Shape(ranks=arguments.pp, microbatches=arguments.microbatches, chunks=chunks)
        durations = times(arguments)
        answers = [_answer(name, size, durations, arguments.transfer) for name in SCHEDULES]
        answers += [_planned(name, size, durations, arguments.transfer) for name in PLANNED]
        tell(answers, _show, format=arguments.format)
        return 0


def _answer(name: str, size: Shape, durations: Times, transfer: float) -> Answer:
    """Each with as many stages a rank as asked for, if it can have them."""
    schedule = SCHEDULES[name]
    chunks = max(size.chunks, schedule.least_chunks)
    chunks = min(chunks, schedule.most_chunks or chunks)
    shape = Shape(ranks=size.ranks, microbatches=size.microbatches, chunks=chunks)
    refusal = schedule.refusal(shape)
    formula = FORMULAS.get(name)
    played_out = None if refusal else timetable(orders(name, shape), durations, transfer=transfer)
    return Answer(
        schedule=name,
        virtual=chunks,
        bubble_ratio=None if refusal else bubble_ratio(name, shape, durations),
        bubble_over_ideal=None if refusal else bubble_over_ideal(name, shape, durations),
        played_out_ratio=played_out.idle_ratio if played_out else None,
        played_out_over_ideal=played_out.idle_over_ideal if played_out else None,
        formula=formula.text if formula else None,
        source=formula.source if formula else None,
        refusal=refusal,
    )


def _planned(name: str, size: Shape, durations: Times, transfer: float) -> Answer:
    """By its formula alone, of one stage a rank."""
    ratio = planned_ratio(name, Shape(ranks=size.ranks, microbatches=size.microbatches), durations, transfer=transfer)
    return Answer(
        schedule=name,
        virtual=1,
        bubble_ratio=ratio,
        bubble_over_ideal=None if ratio is None else ratio / (1 - ratio),
        played_out_ratio=None,
        played_out_over_ideal=None,
        formula=f"formula only: {PLANNED[name].text}",
        source=PLANNED[name].source,
        refusal=None,
    )


def _show(answers: list[Answer], console: Console) -> None:
    console.print("BUBBLE  of total and of ideal time, by formula and with its order played out", style="bold")
    rows = table(*HEADS)
    for answer in answers:
        by_formula = answer["bubble_ratio"], answer["bubble_over_ideal"]
        played_out = answer["played_out_ratio"], answer["played_out_over_ideal"]
        rows.add_row(f"    {answer['schedule']}", str(answer["virtual"]), *map(share, (*by_formula, *played_out)))
    console.print(Trimmed(rows), end="")
    lines = (Text(f"{answer['schedule']:<12} {_told(answer)}") for answer in answers)
    console.print("\nIDLE TIME OF A RANK  F, I, W of one stage, B = I + W; P ranks, M microbatches", style="bold")
    console.print(Trimmed(indented(lines)), end="")


def _told(answer: Answer) -> str:
    if answer["refusal"] is not None:
        return answer["refusal"]
    return (
        "no formula; its order is played out"
        if answer["formula"] is None
        else f"{answer['formula']}  [{answer['source']}]"
    )
