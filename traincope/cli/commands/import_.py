"""`traincope import`: make a run directory from kernel traces of torch's profiler."""

import argparse
from pathlib import Path

from traincope.ingest import import_traces


class Import:
    name = "import"
    help = "make a run directory from kernel traces of torch's profiler (.json, .json.gz), one or more per rank"
    example = "traincope import traces/*.json.gz -o traincope_runs/imported"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("traces", type=Path, nargs="+", metavar="TRACE", help="trace of a rank, plain or gzip")
        parser.add_argument("-o", "--output", type=Path, metavar="RUN", required=True, help="run directory to create")

    def run(self, arguments: argparse.Namespace) -> int:
        for trace in import_traces(arguments.traces, arguments.output):
            events = f"{trace.num_kept:,} of {trace.num_read:,} events kept"
            print(f"{trace.source}: rank {trace.rank} ({trace.rule}), {events}")
            if trace.lost is not None:
                print(f"  incomplete: {trace.lost}")
        print(f"see the result:  traincope report {arguments.output}")
        return 0
