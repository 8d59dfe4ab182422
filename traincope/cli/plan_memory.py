"""`traincope plan memory`: what every rank of a pipeline must hold, by formula."""

import argparse
from typing import TypedDict

from rich.console import Console
from rich.text import Text

from traincope.cli.answers import add_format, tell
from traincope.cli.layout import add_layout, layout, precision
from traincope.cli.model_shape import add_model, transformer
from traincope.plan.activations import Keeping
from traincope.plan.flops import Recompute
from traincope.plan.memory import LEFT_OUT, RankMemory, memory
from traincope.report.tables import indented, table
from traincope.report.trimmed import Trimmed
from traincope.units import count, size

FORMULAS = "model states: Rajbhandari et al. 2019, section 5; activations: Korthikanti et al. 2022, table 2"


class Rank(TypedDict):
    """Of one rank of the pipeline; bytes."""

    pipeline_rank: int
    parameters: int
    """Before ZeRO shares them."""
    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    total_bytes: int
    in_flight: int
    """The most microbatches at once, one on each of its stages counted."""


class Answer(TypedDict):
    ranks: int
    """Of the whole mesh."""
    batch: int
    """Sequences of a step."""
    parameters: int
    largest_bytes: int
    pipeline: list[Rank]
    formulas: str
    left_out: str


class PlanMemory:
    name = "memory"
    help = "what each rank must hold: weights, gradients, optimizer, activations, by formula"
    example = (
        "traincope plan memory --layers 96 --hidden 12288 --heads 96 --vocab 51200 --seq 2048 --tp 8 --pp 8 --dp 8 "
        "--microbatches 8 --zero 1 --recompute selective"
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_model(parser)
        add_layout(parser)
        kept = parser.add_argument_group("activations")
        kept.add_argument("--flash", action="store_true", help="attention keeps no scores, as flash attention")
        kept.add_argument("--no-dropout", action="store_true", help="no masks are kept, as in most models now")
        add_format(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        answer = _answer(arguments)
        tell(answer, _show, format=arguments.format)
        return 0


def _answer(arguments: argparse.Namespace) -> Answer:
    shape, mesh = transformer(arguments), layout(arguments)
    keeping = Keeping(
        recompute=Recompute(arguments.recompute),
        flash=arguments.flash,
        dropout=not arguments.no_dropout,
        dtype=arguments.activations,
    )
    held = memory(shape, layout=mesh, precision=precision(arguments), keeping=keeping)
    return Answer(
        ranks=mesh.ranks,
        batch=mesh.batch,
        parameters=shape.parameters,
        largest_bytes=max(rank.total for rank in held),
        pipeline=[_rank(rank) for rank in held],
        formulas=FORMULAS,
        left_out=LEFT_OUT,
    )


def _rank(held: RankMemory) -> Rank:
    return Rank(
        pipeline_rank=held.rank,
        parameters=held.parameters,
        weights_bytes=held.states.weights,
        gradients_bytes=held.states.gradients,
        optimizer_bytes=held.states.optimizer,
        activations_bytes=held.activations,
        total_bytes=held.total,
        in_flight=held.in_flight,
    )


def _show(answer: Answer, console: Console) -> None:
    head = f"{count(answer['ranks'], 'rank')}, {count(answer['batch'], 'sequence')} a step"
    console.print(f"MEMORY  of a rank; {head}, {answer['parameters']:,} parameters", style="bold", highlight=False)
    rows = table("rank", "weights", "gradients", "optimizer", "activations", "in flight", "all")
    for rank in answer["pipeline"]:
        rows.add_row(
            f"    {rank['pipeline_rank']}",
            *(size(rank[key]) for key in ("weights_bytes", "gradients_bytes", "optimizer_bytes", "activations_bytes")),
            str(rank["in_flight"]),
            size(rank["total_bytes"]),
        )
    console.print(Trimmed(rows), end="")
    lines = ("ranks of the pipeline; microbatches in flight", answer["formulas"], f"on top: {answer['left_out']}")
    console.print(Trimmed(indented(map(Text, lines))), end="")
