"""`traincope ls`: the runs below a directory."""

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from traincope.cli.answers import add_format
from traincope.cli.screen import make_console
from traincope.lines import Trimmed
from traincope.printable import printable
from traincope.report.run_list import ListedRun, RunState, judged_so_far, list_runs
from traincope.store.layout import DEFAULT_ROOT
from traincope.store.places.fetched import copies_below
from traincope.store.places.remote import url_of
from traincope.store.reading import SHARE
from traincope.timeline.observation import Recorder
from traincope.units import count, share

STYLES = {RunState.RUNNING: "green", RunState.HUNG: "bold red", RunState.DEAD: "red", RunState.DAMAGED: "red"}
ENDED = (RunState.DONE, RunState.DEAD, RunState.IMPORTED)
RUN, VERDICT = "run", "verdict"
ALWAYS, WITH_ROOM = ("state", "steps", "MFU"), ("ranks", "start (UTC)", "goodput")
"""Columns between name and verdict, and those that a wider terminal has too, in the order in which they are added."""
ORDER = ("state", "ranks", "steps", "MFU", "goodput", "start (UTC)")
LEFT = (RUN, "state", VERDICT)
GAP = 2
MIN_VERDICT = 24
RECORDERS = {
    Recorder.NATIVE: "the native recorder",
    Recorder.PYTHON: "the Python hooks",
    Recorder.BOTH: "the native recorder on some ranks and the Python hooks on others",
}


class Ls:
    name = "ls"
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
        if url is None:  # copies have no records
            runs = judged_so_far(runs)
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
    """Print one row for each run. Names are whole: where they leave no room, they have lines of their own.

    A problem is a sentence below its run.
    """
    rows = [_cells(os.path.relpath(run.path, directory), run) for run in runs]
    needed = {column: max(len(column), *(cell_len(row[column].plain) for row in rows)) for column in rows[0]}
    room = console.width - MIN_VERDICT - sum(needed[column] + GAP for column in (RUN, *ALWAYS))
    widths = _widths(needed, room)
    rest = console.width - sum(width + GAP for width in widths.values())
    is_stacked = RUN not in widths
    head = {column: Text(column, style="bold") for column in rows[0]}
    for row, run in zip((head, *rows), (None, *runs), strict=True):
        if is_stacked and row is not head:
            console.print(row[RUN], soft_wrap=True)
        grid = Table.grid(padding=(0, GAP, 0, 0))
        for column, width in widths.items():
            grid.add_column(justify="left" if column in LEFT else "right", width=width, no_wrap=True)
        grid.add_column(overflow="fold", width=max(rest, 1))
        grid.add_row(*(row[column] for column in widths), row[VERDICT])
        console.print(Trimmed(grid), end="")
        if run is not None and run.problem:
            console.print(Text(f"  {printable(run.problem)}"), soft_wrap=True)
    for line in (count(len(runs), "run"), *_without_report(runs), *_recorders(runs)):
        console.print(Text(line, style="dim"), soft_wrap=True)


def _without_report(runs: Sequence[ListedRun]) -> Iterator[str]:
    """Say why ended runs have no verdict: `ls` reads reports, not records."""
    number = sum(run.state in ENDED and run.title is None for run in runs)
    if number:
        yield f"{count(number, 'run')} without a kept report; traincope report RUN has steps, MFU and verdict"


def _recorders(runs: Sequence[ListedRun]) -> Iterator[str]:
    """Count the runs of each recorder, with the reasons why it was not the native one."""
    kinds = Counter((run.recorder, run.why_python) for run in runs if run.recorder is not None)
    for (recorder, why), number in kinds.items():
        reason = "" if why is None else f": {printable(why)}"
        yield f"{count(number, 'run')} with collectives recorded by {RECORDERS[recorder]}{reason}"


def _widths(needed: Mapping[str, int], room: int) -> dict[str, int]:
    """Widths of the columns before the verdict. `room`: what is left of a line beyond the columns of every line."""
    if room < 0:
        return {"": GAP, **{column: needed[column] for column in ALWAYS}}
    chosen = set(ALWAYS)
    for column in WITH_ROOM:
        room -= needed[column] + GAP
        if room >= 0:
            chosen.add(column)
    return {RUN: needed[RUN], **{column: needed[column] for column in ORDER if column in chosen}}


def _cells(name: str, run: ListedRun) -> dict[str, Text]:
    start = run.started_wall_ns
    return {
        "": Text(),
        RUN: Text(printable(name)),
        "state": Text(run.state.value, style=STYLES.get(run.state, "")),
        "ranks": Text("-" if run.world_size is None else f"{run.world_size:,}"),
        "steps": Text("-" if run.steps is None else f"{run.steps:,}"),
        "MFU": Text("-" if run.mfu is None else share(run.mfu)),
        "goodput": Text("-" if run.goodput is None else share(run.goodput)),
        "start (UTC)": Text(f"{datetime.fromtimestamp(start / 1e9, UTC):%Y-%m-%d %H:%M}" if start else "-"),
        VERDICT: Text(printable(run.title or "-")),
    }
