"""`traincope plan cadence`: the best interval between checkpoints."""

import argparse
import math
from typing import TypedDict

from rich.console import Console

from traincope.cli.answers import add_format, print_answer
from traincope.cli.plan.model_shape import require_positive
from traincope.cli.quantities import quantity, whole
from traincope.errors import UsageError
from traincope.lines import Trimmed, table
from traincope.plan.cadence import Failures, daly_seconds, job_mtbf, useful_ratio, young_seconds
from traincope.units import duration, share

HOUR = 3600
SECOND_NS = 1_000_000_000


class Interval(TypedDict):
    formula: str
    interval_seconds: float
    """Training time between two checkpoints."""
    steps: int | None
    """Whole steps in the interval; null without a step time."""
    useful_ratio: float
    """Share of all time that is productive: neither saving, nor repeated, nor restarting."""


class Answer(TypedDict):
    mtbf_hours: float
    """Mean time between failures of the whole job."""
    save_seconds: float
    restart_seconds: float
    intervals: list[Interval]


class PlanCadence:
    name = "cadence"
    help = "compute how often to save a checkpoint: Young's and Daly's intervals, and the goodput they leave"
    example = "traincope plan cadence --mtbf-hours 168 --save-seconds 40 --step-seconds 105.2"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--mtbf-hours",
            type=quantity,
            required=True,
            metavar="X",
            help="mean time between failures of the job, or of each of --parts",
        )
        parser.add_argument(
            "--parts",
            type=whole,
            default=1,
            metavar="N",
            help="number of GPUs or nodes, each of whose failures stops the job (default: 1)",
        )
        parser.add_argument(
            "--save-seconds",
            type=quantity,
            required=True,
            metavar="X",
            help="time that training stops for a save",
        )
        parser.add_argument(
            "--restart-seconds",
            type=quantity,
            default=0.0,
            metavar="X",
            help="time from a failure until training continues from the last checkpoint (default: 0)",
        )
        parser.add_argument(
            "--step-seconds", type=quantity, metavar="X", help="time of a step, to print intervals in steps"
        )
        parser.add_argument(
            "--every-seconds", type=quantity, metavar="X", help="your own interval, to compare with them"
        )
        add_format(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        require_positive(arguments, "mtbf_hours", "parts", "save_seconds", "step_seconds", "every_seconds")
        if arguments.restart_seconds < 0:
            raise UsageError(f"--restart-seconds is {arguments.restart_seconds:g}; it must be at least 0")
        answer = _answer(arguments)
        print_answer(answer, _show, format=arguments.format)
        return 0


def _answer(arguments: argparse.Namespace) -> Answer:
    mtbf_seconds = job_mtbf(part_mtbf_seconds=arguments.mtbf_hours * HOUR, parts=arguments.parts)
    failures = Failures(
        mtbf_seconds=mtbf_seconds, save_seconds=arguments.save_seconds, restart_seconds=arguments.restart_seconds
    )
    intervals = {"Young 1974": young_seconds(failures), "Daly 2006": daly_seconds(failures)}
    if arguments.every_seconds is not None:
        intervals["yours"] = arguments.every_seconds
    return Answer(
        mtbf_hours=mtbf_seconds / HOUR,
        save_seconds=failures.save_seconds,
        restart_seconds=failures.restart_seconds,
        intervals=[
            Interval(
                formula=formula,
                interval_seconds=seconds,
                steps=None if arguments.step_seconds is None else max(1, math.floor(seconds / arguments.step_seconds)),
                useful_ratio=useful_ratio(failures, seconds),
            )
            for formula, seconds in intervals.items()
        ],
    )


def _show(answer: Answer, console: Console) -> None:
    mtbf = duration(answer["mtbf_hours"] * HOUR * SECOND_NS)
    save = duration(answer["save_seconds"] * SECOND_NS)
    console.print(f"CHECKPOINTS  a failure every {mtbf}, a save costs {save}", style="bold", highlight=False)
    rows = table("interval by", "training between saves", "steps", "goodput")
    for interval in answer["intervals"]:
        rows.add_row(
            f"    {interval['formula']}",
            duration(interval["interval_seconds"] * SECOND_NS),
            "-" if interval["steps"] is None else f"{interval['steps']:,}",
            share(interval["useful_ratio"]),
        )
    console.print(Trimmed(rows), end="")
