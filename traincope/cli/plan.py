"""`traincope plan ...`: what theory says of a training before it runs; one question each."""

import argparse

from traincope.cli.command import Command, add_commands
from traincope.cli.plan_bubble import PlanBubble
from traincope.cli.plan_cadence import PlanCadence
from traincope.cli.plan_comm import PlanComm
from traincope.cli.plan_flops import PlanFlops
from traincope.cli.plan_memory import PlanMemory
from traincope.cli.plan_schedule import PlanSchedule

QUESTIONS: tuple[Command, ...] = (
    PlanFlops(),
    PlanMemory(),
    PlanComm(),
    PlanSchedule(),
    PlanBubble(),
    PlanCadence(),
)
"""All questions, in the order `plan --help` lists them: adding one is one file and one entry here."""


class Plan:
    name = "plan"
    help = "say what theory says of a training: FLOPs, memory, communication, pipeline schedules, checkpoints"
    example = QUESTIONS[0].example

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_commands(parser, QUESTIONS, what="question")

    def run(self, arguments: argparse.Namespace) -> int:
        question: Command = arguments.question
        return question.run(arguments)
