"""`traincope live`: a web page of a running job."""

import argparse
import importlib.util
import signal
import webbrowser

from traincope.cli.given_runs import add_run, given_run
from traincope.cli.served import REQUIRED_PACKAGES, access_of, add_server_arguments
from traincope.errors import MissingDependencyError
from traincope.live.serve.so_far import Judge
from traincope.live.serve.watching import Watcher
from traincope.store.job.requesting import last_attempt
from traincope.store.places.node_local import recorded_at
from traincope.store.reading import find_run


class Live:
    name = "live"
    example = "traincope live traincope_runs/my-job --no-browser"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_run(parser)
        add_server_arguments(parser)
        parser.add_argument("--no-browser", action="store_true", help="do not open the browser")

    def run(self, arguments: argparse.Namespace) -> int:
        for package in REQUIRED_PACKAGES:
            if importlib.util.find_spec(package) is None:
                raise MissingDependencyError(
                    f"the page needs {package}, which is not installed: pip install 'traincope[view]'"
                )
        run = find_run(recorded_at(given_run(arguments.run_directory))).resolve()
        watcher = Watcher(run, attempt=last_attempt(run))
        watcher.start()
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        judge = Judge(run)
        judge.start()
        try:
            _serve(watcher, judge, arguments)
        except KeyboardInterrupt:
            print()
        finally:
            judge.stop()
            watcher.stop()
        return 0


def _serve(watcher: Watcher, judge: Judge, arguments: argparse.Namespace) -> None:
    """Serve the page until interrupted. Raises as `listening`."""
    from traincope.live.serve.page import make_page
    from traincope.viewer.serving import address_of, known_hosts, listening

    access = access_of(arguments)
    page = make_page(watcher, judge, hosts=known_hosts(arguments.host))
    with listening(page, port=arguments.port, host=arguments.host, access=access) as server:
        address = address_of(server, host=arguments.host, access=access)
        print(f"{address} shows {watcher.run} live; press Ctrl-C to stop", flush=True)
        if not arguments.no_browser:
            webbrowser.open(address)
        server.serve_forever()
