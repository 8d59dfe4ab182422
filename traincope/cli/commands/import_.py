"""`traincope import`: make a run directory from kernel traces of torch's profiler."""

import argparse
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from traincope.ingest import find_traces, import_traces


class Import:
    name = "import"
    help = "make a run directory from kernel traces of torch's profiler (.json, .json.gz), one or more per rank"
    example = "traincope import traces/ -o traincope_runs/imported"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "traces",
            type=Path,
            nargs="+",
            metavar="TRACE",
            help="trace of a rank, plain or gzip, or a folder of traces",
        )
        parser.add_argument("-o", "--output", type=Path, metavar="RUN", required=True, help="run directory to create")

    def run(self, arguments: argparse.Namespace) -> int:
        paths = find_traces(arguments.traces)
        console = Console(stderr=True)
        columns = (TextColumn("reading traces"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("", total=len(paths))
            imported = import_traces(paths, arguments.output, on_read=lambda: progress.advance(task))
        for trace in imported:
            events = f"{trace.num_kept:,} of {trace.num_read:,} events kept"
            print(f"{trace.source}: rank {trace.rank} ({trace.rule}), {events}")
            if trace.lost is not None:
                print(f"  incomplete: {trace.lost}")
        print(f"see the result:  traincope report {arguments.output}")
        return 0
