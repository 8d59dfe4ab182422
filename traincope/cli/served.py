"""Options of the commands that serve pages."""

import argparse
import importlib.util
import signal
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from traincope.access import Access, read_users
from traincope.cli.screen import make_console
from traincope.errors import MissingDependencyError
from traincope.units import CURRENCY

if TYPE_CHECKING:
    from traincope.viewer.library.library import Library

REQUIRED_PACKAGES = ("dash", "plotly")
PLAN = "plan"
"""Path of the plan page."""
LOOK_SECONDS = 0.5
"""Interval of the terminal's looks at a reading."""


def add_server_arguments(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add port, address, and what an address that other machines reach needs."""
    parser.add_argument("--port", type=int, metavar="N", help="port (default: the first free one from 8050 on)")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address to listen on (default: 127.0.0.1, reachable only from this machine); any other one needs the "
        "following three",
    )
    parser.add_argument("--certificate", type=Path, metavar="FILE", help="PEM file, for HTTPS")
    parser.add_argument("--key", type=Path, metavar="FILE", help="PEM file with the certificate's private key")
    parser.add_argument("--password-file", type=Path, metavar="FILE", help="file with lines user:password")


def access_of(arguments: argparse.Namespace) -> Access:
    """The access that the options give. Raises ConfigError for an unusable password file."""
    users = None if arguments.password_file is None else read_users(arguments.password_file)
    return Access(certificate=arguments.certificate, key=arguments.key, users=users)


def serve_viewer(
    runs: Sequence[Path],
    arguments: argparse.Namespace,
    *,
    shows: str,
    open_browser: bool,
    path: str = "",
    price_per_gpu_hour: float | None = None,
    currency: str = CURRENCY,
) -> int:
    """Serve the viewer of these runs until Ctrl-C; returns the exit code. `path`: the page to open; the usual search of
    the plan page begins at once.

    Raises MissingDependencyError without the viewer's packages, and as `listening`.
    """
    for package in REQUIRED_PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise MissingDependencyError(
                f"the viewer needs {package}, which is not installed: pip install 'traincope[view]'"
            )
    from traincope.viewer.planning.asked_question import usual_question
    from traincope.viewer.planning.searches import Search, Searches

    searches = Searches()
    if path == PLAN:  # its process works while this one, and the browser, load the pages
        searches.begin(Search(usual_question()))
    from traincope.viewer.library.library import Library
    from traincope.viewer.library.preparing import cache_directory

    access = access_of(arguments)
    library = Library(runs, cache=cache_directory(), price_per_gpu_hour=price_per_gpu_hour, currency=currency)

    def started(address: str) -> None:
        print(f"{address}{path} {shows}; press Ctrl-C to stop", flush=True)
        if open_browser:
            webbrowser.open(f"{address}{path}")

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        library.refresh()  # the child process begins to read while this one loads the pages
        from traincope.viewer.serving import serve

        with _progress_shown(library):
            serve(
                library,
                started=started,
                port=arguments.port,
                host=arguments.host,
                access=access,
                searches=searches,
            )
    except KeyboardInterrupt:
        print()
    finally:
        library.close()
    return 0


@contextmanager
def _progress_shown(library: "Library") -> Iterator[None]:
    """Show on a terminal's standard error what a first reading does."""
    console, ended = make_console(stderr=True), Event()
    thread = Thread(target=_show_progress, args=(library, console, ended), daemon=True)
    if console.is_terminal:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if thread.is_alive():
            thread.join()


def _show_progress(library: "Library", console: Console, ended: Event) -> None:
    while not ended.wait(LOOK_SECONDS):
        if not library.busy:
            continue
        with console.status("reading") as status:
            while library.busy and not ended.wait(LOOK_SECONDS):
                library.refresh()
                if library.stage:
                    status.update(f"reading {escape(library.stage)}")
