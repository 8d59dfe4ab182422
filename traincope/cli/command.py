"""What a command is."""

import argparse
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
        """Do it and return the exit code; raise a TraincopeError where it cannot be done."""
