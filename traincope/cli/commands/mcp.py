"""`traincope mcp`: let an AI assistant read runs."""

import argparse
from pathlib import Path

from traincope.errors import MissingDependencyError


class Mcp:
    name = "mcp"
    help = "let an AI assistant read runs, by the Model Context Protocol over standard input and output"
    example = "traincope mcp sample_runs/demo sample_runs/demo-3d"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "run_directories",
            type=Path,
            nargs="+",
            metavar="RUN",
            help="run directory, or a parent holding one run; the assistant can read no other",
        )

    def run(self, arguments: argparse.Namespace) -> int:
        try:
            from traincope.mcp.runs import ServedRuns
            from traincope.mcp.server import make_server
        except ModuleNotFoundError as error:
            raise MissingDependencyError(
                f"traincope mcp needs {error.name}, which is not installed: pip install 'traincope[mcp]'"
            ) from error
        make_server(ServedRuns(arguments.run_directories)).run("stdio")
        return 0
