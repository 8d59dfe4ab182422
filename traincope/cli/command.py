"""The protocol of a command, and the parsers of commands."""

import argparse
from collections.abc import Iterable
from typing import Protocol


class Command(Protocol):
    """One subcommand: a module-level object in a file of its own, listed in `main.COMMANDS`."""

    name: str
    help: str
    """One line for `traincope --help`."""
    example: str
    """A command line that works, shown by `--help`."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command and return its exit code. Raises TraincopeError on failure."""


def add_commands(
    parser: argparse.ArgumentParser, commands: Iterable[Command], *, what: str, required: bool = True
) -> None:
    """Add one parser per command. The parsed arguments hold the chosen command as `what`, also its name in `--help`.

    Without a command they hold None, unless one is `required`.
    """
    parser.set_defaults(**{what: None})
    subparsers = parser.add_subparsers(title=f"{what}s", metavar=what.upper(), required=required)
    for command in commands:
        subparser = subparsers.add_parser(
            command.name, help=command.help, description=command.help, epilog=f"example: {command.example}"
        )
        command.add_arguments(subparser)
        subparser.set_defaults(**{what: command})
