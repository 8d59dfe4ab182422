"""`traincope view`: show runs in the browser."""

import argparse
import importlib.util
import signal
import webbrowser
from pathlib import Path

from traincope.cli.quantities import add_price
from traincope.cli.served import access_of, add_server_arguments
from traincope.errors import MissingDependencyError
from traincope.store.reading import find_run

REQUIRED_PACKAGES = ("dash", "plotly")


class View:
    name = "view"
    help = "show runs in the browser: verdict, ledger, and a timeline to zoom"
    example = "traincope view sample_runs/demo --no-browser"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "run_directories",
            type=Path,
            nargs="+",
            metavar="RUN",
            help="run directory, or a parent holding one run; with several runs, any two can be compared",
        )
        add_server_arguments(parser)
        add_price(parser)
        parser.add_argument("--no-browser", action="store_true", help="do not open the browser")

    def run(self, arguments: argparse.Namespace) -> int:
        for package in REQUIRED_PACKAGES:
            if importlib.util.find_spec(package) is None:
                raise MissingDependencyError(
                    f"the viewer needs {package}, which is not installed: pip install 'traincope[view]'"
                )
        from traincope.viewer.library.library import Library
        from traincope.viewer.library.preparing import cache_directory
        from traincope.viewer.serving import serve

        access = access_of(arguments)
        runs = [find_run(path) for path in arguments.run_directories]
        library = Library(runs, cache=cache_directory(), price_per_gpu_hour=arguments.price_per_gpu_hour)

        def started(address: str) -> None:
            print(f"{address} shows {', '.join(str(run) for run in runs)}; press Ctrl-C to stop", flush=True)
            if not arguments.no_browser:
                webbrowser.open(address)

        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            serve(library, started=started, port=arguments.port, host=arguments.host, access=access)
        except KeyboardInterrupt:
            print()
        return 0
