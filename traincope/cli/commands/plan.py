"""`traincope plan ...`: formulas for a training before it runs; one subcommand per question."""

import argparse

from traincope.cli.command import Command, add_commands
from traincope.cli.plan.bubble import PlanBubble
from traincope.cli.plan.cadence import PlanCadence
from traincope.cli.plan.check import PlanCheck
from traincope.cli.plan.comm import PlanComm
from traincope.cli.plan.flops import PlanFlops
from traincope.cli.plan.memory import PlanMemory
from traincope.cli.plan.schedule import PlanSchedule
from traincope.cli.plan.search.command import PlanSearch

QUESTIONS: tuple[Command, ...] = (
    PlanFlops(),
    PlanMemory(),
    PlanComm(),
    PlanSchedule(),
    PlanBubble(),
    PlanCadence(),
    PlanSearch(),
    PlanCheck(),
)
"""All questions in the order of `plan --help`. A new question is one file and one entry here."""


class Plan:
    name = "plan"
    help = "compute a training by formula: FLOPs, memory, communication, pipeline schedules, checkpoints"
    example = QUESTIONS[0].example

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_commands(parser, QUESTIONS, what="question")

    def run(self, arguments: argparse.Namespace) -> int:
        question: Command = arguments.question
        return question.run(arguments)
