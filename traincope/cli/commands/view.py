"""`traincope view`: show runs in the browser."""

import argparse

from traincope.cli.given_runs import add_runs
from traincope.cli.quantities import add_price
from traincope.cli.served import add_server_arguments, serve_viewer
from traincope.cli.together import add_attempt, add_workflow, with_runs_of_workflow
from traincope.store.reading import chosen_attempt, find_run


class View:
    name = "view"
    example = "traincope view sample_runs/demo --no-browser"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_runs(parser, more="any two can be compared")
        add_workflow(parser)
        add_attempt(parser)
        add_server_arguments(parser)
        add_price(parser)
        parser.add_argument("--no-browser", action="store_true", help="do not open the browser")

    def run(self, arguments: argparse.Namespace) -> int:
        arguments = with_runs_of_workflow(arguments)
        runs = [
            find_run(path) if chosen_attempt(path) is None else path.resolve() for path in arguments.run_directories
        ]
        return serve_viewer(
            runs,
            arguments,
            shows=f"shows {', '.join(map(str, runs))}",
            open_browser=not arguments.no_browser,
            price_per_gpu_hour=arguments.price_per_gpu_hour,
            currency=arguments.currency,
        )
