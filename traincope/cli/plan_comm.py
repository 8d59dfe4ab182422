"""`traincope plan comm`: what a rank sends in one step, axis by axis, by formula."""

import argparse
from typing import TypedDict

from rich.console import Console
from rich.text import Text

from traincope.cli.answers import add_format, tell
from traincope.cli.layout import add_layout, layout, precision
from traincope.cli.model_shape import add_model, transformer
from traincope.plan.communication import Traffic, Volume, volumes
from traincope.plan.flops import Recompute
from traincope.report.tables import indented, table
from traincope.report.trimmed import Trimmed
from traincope.units import count, size


class Row(TypedDict):
    axis: str
    operation: str
    what: str
    group_size: int
    count: int
    """In one step of one rank."""
    num_bytes: int
    """Of all of them together, as nccl-tests count."""
    wire_bytes: int
    """What the rank sends, by a ring where there is a choice."""


class Rank(TypedDict):
    pipeline_rank: int
    wire_bytes: int
    volumes: list[Row]


class Answer(TypedDict):
    ranks: int
    """Of the whole mesh."""
    batch: int
    """Sequences of a step."""
    pipeline: list[Rank]


class PlanComm:
    name = "comm"
    help = "what each rank sends in a step, axis by axis, by formula"
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
        tell(answer, _show, format=arguments.format)
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
        pipeline=[_rank(rank, volumes(traffic, rank=rank)) for rank in range(mesh.pp)],
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
    return Rank(pipeline_rank=rank, wire_bytes=sum(row["wire_bytes"] for row in rows), volumes=rows)


def _show(answer: Answer, console: Console) -> None:
    """The rank that sends most; the others as their sums."""
    most = max(answer["pipeline"], key=lambda rank: rank["wire_bytes"])
    head = f"{count(answer['ranks'], 'rank')}, {count(answer['batch'], 'sequence')} a step"
    where = f", pipeline rank {most['pipeline_rank']}" if len(answer["pipeline"]) > 1 else ""
    console.print(f"COMMUNICATION  of a rank{where}; {head}", style="bold", highlight=False)
    rows = table("axis, operation", "ranks", "count", "bytes", "on the wire", "what")
    rows.columns[-1].justify = "left"
    for row in most["volumes"]:
        rows.add_row(
            f"    {row['axis']} {row['operation']}",
            str(row["group_size"]),
            count(row["count"]),
            size(row["num_bytes"]),
            size(row["wire_bytes"]),
            row["what"],
        )
    rows.add_row("    all", "", "", "", size(most["wire_bytes"]), "")
    console.print(Trimmed(rows), end="")
    others = ", ".join(
        f"{rank['pipeline_rank']}: {size(rank['wire_bytes'])}" for rank in answer["pipeline"] if rank is not most
    )
    lines = ["on the wire by rings: 2(n-1)/n of an all-reduce, (n-1)/n of a gather, reduction or exchange"]
    lines += [f"all of pipeline rank {others}"] if others else []
    console.print(Trimmed(indented(map(Text, lines))), end="")
