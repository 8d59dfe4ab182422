"""The `traincope` command: finds the subcommand, and turns an error into one sentence and its exit code."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from traincope.cli.agent import AgentCommand
from traincope.cli.command import Command, add_commands
from traincope.cli.dashboards import Dashboards
from traincope.cli.demo import Demo
from traincope.cli.diff import DiffCommand
from traincope.cli.doctor import Doctor
from traincope.cli.export import Export
from traincope.cli.import_ import Import
from traincope.cli.live import Live
from traincope.cli.plan import Plan
from traincope.cli.report import Report
from traincope.cli.run import Run
from traincope.cli.train import Train
from traincope.cli.view import View
from traincope.errors import TraincopeError

COMMANDS: tuple[Command, ...] = (
    *(Demo(), Run(), Train(), Report(), View(), Live(), DiffCommand(), AgentCommand(), Plan(), Import(), Export()),
    *(Dashboards(), Doctor()),
)
"""All commands, in the order `--help` lists them: adding one is one file and one entry here."""

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point; always exits."""
    parsed = make_parser().parse_args(arguments)
    command: Command = parsed.command
    try:
        code = command.run(parsed)
    except TraincopeError as error:
        print(f"traincope {command.name}: {error}", file=sys.stderr)
        code = error.exit_code
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        # Whoever read us (head, less) has seen enough; Python would complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="traincope",
        description="Where did the time of your distributed training go, who is to blame, and what to do about it.",
        epilog="example: traincope report traincope_runs/my-job",
    )
    parser.add_argument("--version", action="version", version=f"traincope {version('traincope')}")
    add_commands(parser, COMMANDS, what="command")
    return parser


if __name__ == "__main__":
    main()
