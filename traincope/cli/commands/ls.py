"""`traincope ls`: the runs below a directory."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from traincope.cli.answers import add_format
from traincope.cli.screen import make_console
from traincope.printable import printable, short
from traincope.record.session.identity import DEFAULT_ROOT
from traincope.report.run_list import ListedRun, RunState, list_runs
from traincope.store.places.fetched import copies_below
from traincope.store.places.remote import url_of
from traincope.store.reading import SHARE
from traincope.units import count, share

STYLES = {RunState.RUNNING: "green", RunState.HUNG: "bold red", RunState.DEAD: "red", RunState.DAMAGED: "red"}
RUN, VERDICT = "run", "verdict"
WIDTHS = {"state": 8, "ranks": 6, "steps": 6, "MFU": 6, "goodput": 7, "start (UTC)": 16}
"""Column -> its width. Names of runs have the rest of 80 characters. What a wider terminal has more is for names that
need it, and for verdicts.
"""
NARROW = 80
NAME_WIDTH = NARROW - sum(width + 2 for width in WIDTHS.values())
MIN_VERDICT = 20


class Ls:
    name = "ls"
    help = "list the runs below a directory: state, ranks, steps, MFU, goodput, start and verdict"
    example = "traincope ls traincope_runs"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "directory",
            type=Path,
            nargs="?",
            default=Path(DEFAULT_ROOT),
            metavar="DIR",
            help="or a URL, e.g. s3://bucket/runs; default: %(default)s",
        )
        add_format(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        url = url_of(arguments.directory)
        directory = arguments.directory if url is None else copies_below(url)
        unreadable: list[OSError] = []
        runs = list(list_runs(directory, unreadable=unreadable.append))
        if unreadable:
            print(f"unreadable directories: {len(unreadable)}; {SHARE}", file=sys.stderr)
        if arguments.format == "json":
            print(json.dumps([{**asdict(run), "path": _place(run, directory, url)} for run in runs], indent=1))
        elif not runs:
            print(f"no run below {url or directory}")
        else:
            _show(runs, directory, make_console())
        return 0


def _place(run: ListedRun, directory: Path, url: str | None) -> str:
    """The run's path; below a URL, its URL."""
    if url is None:
        return str(run.path)
    return url if run.path == directory else f"{url}/{run.path.relative_to(directory)}"


def _show(runs: Sequence[ListedRun], directory: Path, console: Console) -> None:
    table = Table(box=None, pad_edge=False)
    names = [os.path.relpath(run.path, directory) for run in runs]
    needed = max(len(printable(name)) for name in names) - NAME_WIDTH
    more = min(max(needed, 0), max(console.width - NARROW, 0))
    verdicts = console.width - NARROW - more - 2
    widths = {RUN: NAME_WIDTH + more, **WIDTHS, **({VERDICT: verdicts} if verdicts >= MIN_VERDICT else {})}
    for column, width in widths.items():
        is_text = column in (RUN, "state", VERDICT)
        table.add_column(column, justify="left" if is_text else "right", no_wrap=True, overflow="ellipsis", width=width)
    for name, run in zip(names, runs, strict=True):
        table.add_row(*_cells(short(name, max_length=widths[RUN]), run)[: len(widths)])
    if VERDICT in widths:
        console.print(table)
    else:
        _print_with_verdicts(table, runs, console)
    console.print(Text(count(len(runs), "run"), style="dim"))


def _print_with_verdicts(table: Table, runs: Sequence[ListedRun], console: Console) -> None:
    """Print a narrow table, each problem or verdict on a line of its own below its run."""
    with console.capture() as capture:
        console.print(table)
    head, *lines = capture.get().splitlines()
    print(head, file=console.file)
    for line, run in zip(lines, runs, strict=True):
        print(line, file=console.file)
        if run.problem or run.verdict:
            console.print(Text(f"  {printable(run.problem or run.verdict or '')}"), soft_wrap=True)


def _cells(name: str, run: ListedRun) -> tuple[str | Text, ...]:
    """The end of a name is a launch's time: it distinguishes runs better than the middle."""
    start = run.started_wall_ns
    return (
        name,
        Text(run.state.value, style=STYLES.get(run.state, "")),
        "-" if run.world_size is None else f"{run.world_size:,}",
        "-" if run.steps is None else f"{run.steps:,}",
        "-" if run.mfu is None else share(run.mfu),
        "-" if run.goodput is None else share(run.goodput),
        f"{datetime.fromtimestamp(start / 1e9, UTC):%Y-%m-%d %H:%M}" if start else "-",
        Text(printable(run.problem or run.verdict or "-")),
    )
