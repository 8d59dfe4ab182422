"""`traincope plan memory`: bytes that every rank of a pipeline holds, by formula."""

import argparse
from collections.abc import Iterator
from typing import TypedDict

from rich.console import Console
from rich.text import Text

from traincope.cli.answers import add_format, print_answer
from traincope.cli.plan.layout import add_layout, layout, precision
from traincope.cli.plan.model_shape import add_model, transformer
from traincope.lines import Trimmed, indented, table
from traincope.plan.layout.activations import ActivationPolicy
from traincope.plan.layout.memory import LEFT_OUT, RankMemory, memory
from traincope.plan.model.flops import Recompute
from traincope.units import count, size

FORMULAS = "model states: Rajbhandari et al. 2019, section 5; activations: Korthikanti et al. 2022, table 2"

PARTS = ("weights", "gradients", "optimizer", "activations", "temporary")


class Rank(TypedDict):
    """Memory of one pipeline rank, in bytes."""

    pipeline_rank: int
    layers: int
    """Layers of its stages."""
    parameters: int
    """Parameters of its stages, before ZeRO splits them."""
    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    temporary_bytes: int
    total_bytes: int
    host_bytes: int
    """Bytes in the CPU's memory; `nvme_bytes` are those on local disks. Neither is in `total_bytes`."""
    nvme_bytes: int
    in_flight: int
    """Most microbatches at once, counted once per stage."""


class Answer(TypedDict):
    ranks: int
    """Ranks of the whole mesh."""
    batch: int
    """Sequences per step."""
    parameters: int
    largest_bytes: int
    pipeline: list[Rank]
    formulas: str
    left_out: str


class PlanMemory:
    name = "memory"
    help = "compute the memory of each rank: weights, gradients, optimizer states, activations"
    example = (
        "traincope plan memory --layers 96 --hidden 12288 --heads 96 --vocab 51200 --seq 2048 --tp 8 --pp 8 --dp 8 "
        "--microbatches 8 --zero 1 --recompute selective"
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_model(parser)
        add_layout(parser)
        kept = parser.add_argument_group("activations")
        kept.add_argument("--flash", action="store_true", help="attention keeps no scores, as in flash attention")
        kept.add_argument(
            "--no-dropout", action="store_true", help="no dropout masks are kept, as in most current models"
        )
        add_format(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        answer = _answer(arguments)
        print_answer(answer, _show, format=arguments.format)
        return 0


def _answer(arguments: argparse.Namespace) -> Answer:
    shape, mesh = transformer(arguments), layout(arguments)
    policy = ActivationPolicy(
        recompute=Recompute(arguments.recompute),
        flash=arguments.flash,
        dropout=not arguments.no_dropout,
        dtype=arguments.activations,
    )
    held = memory(shape, layout=mesh, precision=precision(arguments), policy=policy)
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
        layers=held.layers,
        parameters=held.parameters,
        weights_bytes=held.states.weights,
        gradients_bytes=held.states.gradients,
        optimizer_bytes=held.states.optimizer,
        activations_bytes=held.activations,
        temporary_bytes=held.temporary,
        total_bytes=held.total,
        host_bytes=held.host,
        nvme_bytes=held.nvme,
        in_flight=held.in_flight,
    )


def _show(answer: Answer, console: Console) -> None:
    head = f"{count(answer['ranks'], 'rank')}, {count(answer['batch'], 'sequence')} per step"
    console.print(f"MEMORY  per rank; {head}, {answer['parameters']:,} parameters", style="bold", highlight=False)
    rows = table("rank", *PARTS[:3], "kept", "temporary", "held", "total")
    for rank in answer["pipeline"]:
        rows.add_row(
            f"    {rank['pipeline_rank']}",
            *(size(rank[f"{part}_bytes"]) for part in PARTS),  # type: ignore[literal-required]
            str(rank["in_flight"]),
            size(rank["total_bytes"]),
        )
    console.print(Trimmed(rows), end="")
    layers = [str(rank["layers"]) for rank in answer["pipeline"]]
    lines = (
        "rank: rank of the pipeline; kept: activations of held microbatches",
        *_off_device(answer["pipeline"]),
        *([f"layers by rank: {', '.join(layers)}"] if len(set(layers)) > 1 else []),
        answer["formulas"],
        f"not included: {answer['left_out']}",
    )
    console.print(Trimmed(indented(map(Text, lines))), end="")


def _off_device(ranks: list[Rank]) -> Iterator[str]:
    host, nvme = (max(rank[name] for rank in ranks) for name in ("host_bytes", "nvme_bytes"))
    if host or nvme:
        yield f"off the device: {size(host)} of a rank in the CPU's memory, {size(nvme)} on local disks"
