"""`traincope export`: a run, to show to others."""

import argparse
from pathlib import Path

from traincope.errors import UsageError
from traincope.store.redaction import redact


class Export:
    name = "export"
    help = "copy a run without its names: every number stays, so that it can be shown to others"
    example = "traincope export sample_runs/demo --to run --redact -o /tmp/demo-without-names"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "run_directory", type=Path, metavar="RUN", help="run directory, or a parent holding one run"
        )
        parser.add_argument("--to", choices=("run",), default="run", help="what to make of it (default: run)")
        parser.add_argument(
            "--redact", action="store_true", help="hash names of spans, events, modules, hosts; leave out stacks"
        )
        parser.add_argument("-o", "--output", type=Path, metavar="DIR", required=True, help="directory to make")

    def run(self, arguments: argparse.Namespace) -> int:
        if not arguments.redact:
            raise UsageError("a run directory is a plain directory: copy it with cp -r, or without its names: --redact")
        redact(arguments.run_directory, arguments.output)
        print(f"{arguments.output} holds the same numbers without your names; look before you show it")
        return 0
