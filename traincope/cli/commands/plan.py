"""`traincope plan ...`: formulas for a training before it runs; one subcommand per question."""

import argparse

from traincope.cli.command import Subcommand, add_commands
from traincope.cli.plan.bubble import PlanBubble
from traincope.cli.plan.budget import PlanBudget
from traincope.cli.plan.cadence import PlanCadence
from traincope.cli.plan.check import PlanCheck
from traincope.cli.plan.comm import PlanComm
from traincope.cli.plan.flops import PlanFlops
from traincope.cli.plan.memory import PlanMemory
from traincope.cli.plan.peak import PlanPeak
from traincope.cli.plan.schedule import PlanSchedule
from traincope.cli.plan.search.command import PlanSearch
from traincope.cli.served import PLAN, add_server_arguments, serve_viewer
from traincope.errors import UsageError

QUESTIONS: tuple[Subcommand, ...] = (
    PlanBudget(),
    PlanFlops(),
    PlanMemory(),
    PlanPeak(),
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
    example = QUESTIONS[0].example

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        browser = parser.add_argument_group("in the browser")
        browser.add_argument("--open", action="store_true", help="open the plan page: `search` with fields and figures")
        add_server_arguments(browser)
        browser.add_argument("--no-browser", action="store_true", help="with --open: print the address only")
        add_commands(parser, QUESTIONS, what="question", required=False)

    def run(self, arguments: argparse.Namespace) -> int:
        question: Subcommand | None = arguments.question
        if arguments.open:
            if question is not None:
                raise UsageError(f"--open needs no question; leave {question.name} out")
            return serve_viewer(
                [], arguments, shows="plans trainings", open_browser=not arguments.no_browser, path=PLAN
            )
        if question is None:
            names = ", ".join(each.name for each in QUESTIONS)
            raise UsageError(f"plan needs a question: {names}; or --open for the browser")
        return question.run(arguments)
