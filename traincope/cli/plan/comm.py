"""`traincope plan comm`: bytes that a rank sends per step on each mesh axis, by formula."""

import argparse
from typing import TypedDict

from rich.console import Console
from rich.text import Text

from traincope.cli.answers import add_format, print_answer
from traincope.cli.plan.layout import add_layout, layout, precision
from traincope.cli.plan.model_shape import add_model, transformer
from traincope.lines import Trimmed, indented, table
from traincope.plan.layout.communication import HOST, Traffic, Volume, host_copies, volumes
from traincope.plan.model.flops import Recompute
from traincope.units import count, size


class Row(TypedDict):
    axis: str
    operation: str
    what: str
    group_size: int
    count: int
    """Operations per step of one rank."""
    num_bytes: int
    """Bytes of all operations together, counted as nccl-tests do."""
    wire_bytes: int
    """Bytes that the rank sends, by a ring if there is a choice."""


class Rank(TypedDict):
    pipeline_rank: int
    wire_bytes: int
    """Bytes that the rank sends to others; copies to and from its CPU (axis `host`) are not among them."""
    volumes: list[Row]


class Answer(TypedDict):
    ranks: int
    """Ranks of the whole mesh."""
    batch: int
    """Sequences per step."""
    pipeline: list[Rank]


class PlanComm:
    name = "comm"
    help = "compute the bytes that each rank sends per step on each mesh axis"
    example = (
        "traincope plan comm --layers 32 --hidden 4096 --heads 32 --kv-heads 8 --ffn 14336 --gated-mlp --untied "
        "--vocab 128256 --seq 8192 --dp 8 --zero 3 --tp 2 --pp 4 --microbatches 16"
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_model(parser)
        add_layout(parser)
        add_format(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        answer = _answer(arguments)
        print_answer(answer, _show, format=arguments.format)
        return 0


def _answer(arguments: argparse.Namespace) -> Answer:
    mesh = layout(arguments)
    traffic = Traffic(
        shape=transformer(arguments),
        layout=mesh,
        precision=precision(arguments),
        recompute=Recompute(arguments.recompute),
    )
    return Answer(
        ranks=mesh.ranks,
        batch=mesh.batch,
        pipeline=[
            _rank(rank, (*volumes(traffic, rank=rank), *host_copies(traffic, rank=rank))) for rank in range(mesh.pp)
        ],
    )


def _rank(rank: int, sent: tuple[Volume, ...]) -> Rank:
    rows = [
        Row(
            axis=volume.axis,
            operation=volume.operation,
            what=volume.what,
            group_size=volume.ranks,
            count=volume.count,
            num_bytes=volume.num_bytes,
            wire_bytes=round(volume.wire_bytes),
        )
        for volume in sent
    ]
    wire = sum(row["wire_bytes"] for row in rows if row["axis"] != HOST)
    return Rank(pipeline_rank=rank, wire_bytes=wire, volumes=rows)


def _show(answer: Answer, console: Console) -> None:
    """Print all operations of the rank that sends most, and the sums of the other ranks."""
    busiest = max(answer["pipeline"], key=lambda rank: rank["wire_bytes"])
    head = f"{count(answer['ranks'], 'rank')}, {count(answer['batch'], 'sequence')} per step"
    where = f"of pipeline rank {busiest['pipeline_rank']}" if len(answer["pipeline"]) > 1 else "per rank"
    console.print(f"COMMUNICATION  {where}; {head}", style="bold", highlight=False)
    rows = table("axis, operation", "ranks", "count", "bytes", "on the wire", "what")
    rows.columns[-1].justify = "left"
    for row in busiest["volumes"]:
        rows.add_row(
            f"    {row['axis']} {row['operation']}",
            str(row["group_size"]),
            count(row["count"]),
            size(row["num_bytes"]),
            size(row["wire_bytes"]),
            row["what"],
        )
    rows.add_row("    total", "", "", "", size(busiest["wire_bytes"]), "")
    console.print(Trimmed(rows), end="")
    others = ", ".join(
        f"{rank['pipeline_rank']}: {size(rank['wire_bytes'])}" for rank in answer["pipeline"] if rank is not busiest
    )
    lines = ["on the wire, with rings of n ranks: 2(n-1)/n of an all-reduce, (n-1)/n of other collectives"]
    lines += [f"total of pipeline rank {others}"] if others else []
    console.print(Trimmed(indented(map(Text, lines))), end="")
