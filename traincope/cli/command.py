"""The protocol of a command, and the parsers of commands."""

import argparse
from collections.abc import Iterable
from typing import Any, Protocol

EXAMPLE = "example: "


class Command(Protocol):
    """A command in a file of its own, listed in `main.COMMANDS`."""

    name: str
    example: str
    """A command line that works, shown by `--help`."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command and return its exit code. Raises TraincopeError on failure."""


class Subcommand(Command, Protocol):
    """A command of a command."""

    help: str
    """One line for `--help`."""


class Help(argparse.HelpFormatter):
    """Help whose example is one line, so that it can be copied."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith(EXAMPLE) else super()._fill_text(text, width, indent)


def add_commands(
    parser: argparse.ArgumentParser, commands: Iterable[Subcommand], *, what: str, required: bool = True
) -> None:
    """Add one parser per command. The parsed arguments hold the chosen command as `what`, also its name in `--help`.

    Without a command they hold None, unless one is `required`.
    """
    parser.set_defaults(**{what: None})
    subparsers = parser.add_subparsers(title=f"{what}s", metavar=what.upper(), required=required)
    for command in commands:
        add_command(subparsers, command, help_line=command.help, what=what)


def add_command(subparsers: Any, command: Command, *, help_line: str, what: str) -> None:
    """Add the parser of a command. The parsed arguments hold it as `what`."""
    parser = subparsers.add_parser(
        command.name,
        help=help_line,
        description=help_line,
        epilog=f"{EXAMPLE}{command.example}",
        formatter_class=Help,
    )
    command.add_arguments(parser)
    parser.set_defaults(**{what: command})
