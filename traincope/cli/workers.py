"""Options of commands that read large runs: which processes read, and how far they are."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from traincope.cli.quantities import whole
from traincope.cli.screen import make_console
from traincope.errors import UsageError
from traincope.executors import Workers, own_processes
from traincope.summaries.reading import Progress as OnRead

MAX_PROCESSES = 1024


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Add `--processes` and `--scheduler`."""
    parser.add_argument(
        "--processes", type=whole, metavar="N", help="processes of this machine that read (default: one per core)"
    )
    parser.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="read by the workers of this Dask scheduler, e.g. tcp://head:8786; they must see the run's files",
    )


def workers_of(arguments: argparse.Namespace) -> Workers:
    """Return the workers that the options name. Raises UsageError."""
    if arguments.processes is not None and not 1 <= arguments.processes <= MAX_PROCESSES:
        raise UsageError(f"--processes is a number from 1 to {MAX_PROCESSES:,}")
    if arguments.scheduler is not None:
        return Workers(scheduler=arguments.scheduler)
    return own_processes() if arguments.processes is None else Workers(processes=arguments.processes)


@contextmanager
def read_progress() -> Iterator[OnRead]:
    """Show the number of ranks that were read, on a terminal's standard error."""
    columns = (TextColumn("reading"), BarColumn(), MofNCompleteColumn(), TextColumn("ranks"), TimeElapsedColumn())
    console = make_console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal, auto_refresh=False
    ) as progress:  # a thread that refreshes would run while a pool forks
        task = progress.add_task("reading", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total, refresh=True)
