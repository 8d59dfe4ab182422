"""`traincope doctor`: the probes that work here or worked in a run, and remedies for the others."""

import argparse
import json
import os
from pathlib import Path

from rich.console import Console

from traincope.cli.answers import add_format
from traincope.doctor import examine_machine, examine_run, render, to_document
from traincope.errors import TraincopeError


class Doctor:
    name = "doctor"
    help = "list the probes that work here, or worked in a run; for the others the reason and the remedy"
    example = "traincope doctor sample_runs/demo"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "run_directory",
            type=Path,
            nargs="?",
            metavar="RUN",
            help="run directory, or a parent holding one run (default: examine this machine and this Python)",
        )
        add_format(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Print the findings. The exit code is 0 if only optional things are missing."""
        if arguments.run_directory is None:
            examination = examine_machine(os.environ)
        else:
            examination = examine_run(arguments.run_directory)
        if arguments.format == "json":
            print(json.dumps(to_document(examination), indent=2))
        else:
            render(examination, Console())
        return 0 if examination.healthy else TraincopeError.exit_code
