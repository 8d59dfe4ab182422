"""`traincope mcp`: let an AI assistant read runs."""

import argparse

from traincope.cli.given_runs import add_runs, given_runs
from traincope.errors import MissingDependencyError


class Mcp:
    name = "mcp"
    example = "traincope mcp sample_runs/demo sample_runs/demo-3d"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_runs(parser, more="the assistant can read all of them, and no other")

    def run(self, arguments: argparse.Namespace) -> int:
        try:
            from traincope.mcp.runs import ServedRuns
            from traincope.mcp.server import make_server
        except ModuleNotFoundError as error:
            raise MissingDependencyError(
                f"traincope mcp needs {error.name}, which is not installed: pip install 'traincope[mcp]'"
            ) from error
        make_server(ServedRuns(given_runs(arguments.run_directories))).run("stdio")
        return 0
