"""`traincope doctor`: what can be recorded here, or what was in a run; what is absent, why, and what to do."""

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
    help = "say which probes work here (or did in a run), which are absent, why, and what to do"
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
        """0 also where only optional things are absent."""
        if arguments.run_directory is None:
            examination = examine_machine(os.environ)
        else:
            examination = examine_run(arguments.run_directory)
        if arguments.format == "json":
            print(json.dumps(to_document(examination), indent=2))
        else:
            render(examination, Console())
        return 0 if examination.healthy else TraincopeError.exit_code
