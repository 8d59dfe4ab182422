"""`traincope import`: kernel traces of torch's profiler -> a run directory."""

import argparse
from pathlib import Path

from traincope.ingest import import_traces


class Import:
    name = "import"
    help = "make a run directory of kernel traces that torch's profiler wrote (.json, .json.gz), one or more a rank"
    example = "traincope import traces/*.json.gz -o traincope_runs/imported"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("traces", type=Path, nargs="+", metavar="TRACE", help="trace of a rank, plain or gzip")
        parser.add_argument("-o", "--output", type=Path, metavar="RUN", required=True, help="run directory to make")

    def run(self, arguments: argparse.Namespace) -> int:
        for one in import_traces(arguments.traces, arguments.output):
            print(f"{one.source}: rank {one.rank} ({one.rule}), {one.num_kept:,} of {one.num_read:,} events are kept")
            if one.lost is not None:
                print(f"  not whole: {one.lost}")
        print(f"traincope report {arguments.output} says what is in them")
        return 0
