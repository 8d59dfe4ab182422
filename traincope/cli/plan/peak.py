"""`traincope plan peak`: most bytes that a training of `traincope train` takes on a CPU, operator by operator."""

import argparse
from pathlib import Path
from typing import TypedDict

from rich.console import Console
from rich.text import Text

from traincope.cli.answers import add_format, print_answer
from traincope.errors import MissingDependencyError
from traincope.lines import Trimmed, indented, table
from traincope.plan.allocator.rank import rank_peaks
from traincope.units import count, size

NOTE = "bytes of torch's allocator in fp32 on a CPU; not included: Python, libraries, gloo's threads, mapped files"


class Rank(TypedDict):
    """Memory of one pipeline rank, in bytes."""

    pipeline_rank: int
    held_bytes: int
    """Bytes from step to step."""
    peak_bytes: int


class Answer(TypedDict):
    ranks: int
    """Ranks of the whole mesh."""
    peak_bytes: int
    """Peak of the fullest rank."""
    pipeline: list[Rank]
    note: str


class PlanPeak:
    name = "peak"
    help = "compute the peak memory of a configuration of `traincope train` on a CPU, operator by operator"
    example = "traincope plan peak config.toml"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("config", type=Path, metavar="CONFIG", help="TOML file of `traincope train`, in fp32")
        add_format(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        print_answer(_answer(arguments.config), _show, format=arguments.format)
        return 0


def _answer(path: Path) -> Answer:
    try:
        from traincope.cli.plan.own_plan import read_own_model
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"a configuration of traincope train needs {error.name} to be read: pip install 'traincope[train]'"
        ) from error
    model = read_own_model(path)
    peaks = rank_peaks(model)
    return Answer(
        ranks=model.layout.ranks,
        peak_bytes=max(each.peak_bytes for each in peaks),
        pipeline=[
            Rank(pipeline_rank=each.rank, held_bytes=each.held_bytes, peak_bytes=each.peak_bytes) for each in peaks
        ],
        note=NOTE,
    )


def _show(answer: Answer, console: Console) -> None:
    console.print(f"PEAK  memory per rank; {count(answer['ranks'], 'rank')}", style="bold", highlight=False)
    rows = table("rank", "from step to step", "peak")
    for rank in answer["pipeline"]:
        rows.add_row(f"    {rank['pipeline_rank']}", size(rank["held_bytes"]), size(rank["peak_bytes"]))
    console.print(Trimmed(rows), end="")
    lines = ("rank: rank of the pipeline", answer["note"])
    console.print(Trimmed(indented(map(Text, lines))), end="")
