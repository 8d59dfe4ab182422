"""`traincope import`: make a run directory from kernel traces of torch's profiler."""

import argparse
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from traincope.ingest import Given, find_traces, import_traces


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
        parser.add_argument(
            "--axes",
            type=_axes,
            default={},
            metavar="GROUP=AXIS[,...]",
            help="mesh axes of process groups, by the groups' names or descriptions",
        )
        parser.add_argument(
            "--step-marker",
            metavar="NAME",
            help="range that marks each step, if the profiler's step() was not called",
        )
        parser.add_argument("--gpu", metavar="NAME", help="the GPUs' name in the data sheets, if the traces lack it")
        parser.add_argument("-o", "--output", type=Path, metavar="RUN", required=True, help="run directory to create")

    def run(self, arguments: argparse.Namespace) -> int:
        paths = find_traces(arguments.traces)
        console = Console(stderr=True)
        columns = (TextColumn("reading traces"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("", total=len(paths))
            imported = import_traces(
                paths,
                arguments.output,
                given=Given(axes=arguments.axes, step_marker=arguments.step_marker, gpu=arguments.gpu),
                on_read=lambda: progress.advance(task),
            )
        for trace in imported:
            events = f"{trace.num_kept:,} of {trace.num_read:,} events kept"
            print(f"{trace.source}: rank {trace.rank} ({trace.rule}), {events}")
            if trace.lost is not None:
                print(f"  incomplete: {trace.lost}")
        print(f"see the result:  traincope report {arguments.output}")
        return 0


def _axes(text: str) -> dict[str, str]:
    pairs = [part.strip().rpartition("=") for part in text.split(",")]
    if not all(group and axis for group, _, axis in pairs):
        raise argparse.ArgumentTypeError(f"{text!r} is not GROUP=AXIS[,...], for example 3=tp,mesh_fsdp=fsdp")
    return {group: axis for group, _, axis in pairs}
