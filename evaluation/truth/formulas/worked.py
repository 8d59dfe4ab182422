"""python -m evaluation.truth.formulas.worked: docs/plan/worked-numbers.md, from what the commands of the page print.

Each row holds its command's answer to a value that is computed by hand.
"""

import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from traincope.cli.main import main

PAGE = Path(__file__).parents[3] / "docs" / "plan" / "worked-numbers.md"
HEAD = """# Worked numbers

Numbers that large trainings are explained with, each with its formula and the command that computes it. 1 GB is 1e9
bytes, and 1 GiB is 1.074 GB. `make worked-numbers` writes this page. A test holds each number to one computed by hand.
Where the number that is often taught differs, the last column says why.

N parameters, D tokens, P pipeline ranks, M microbatches, n ranks of a group; for ZeRO's stages, many.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One number."""

    what: str
    formula: str
    command: str
    """Without `traincope`, whose JSON has the number; or a command of Python, which prints it."""
    pick: Callable[[Any], float]
    """The number in the command's answer."""
    truth: float
    """Computed by hand."""
    within: float
    """Half of the last digit of `truth`."""
    form: str
    """Format of the number."""
    note: str = ""

    def computed(self) -> float:
        return self.pick(answer(self.command))


def answer(command: str) -> Any:
    if command.startswith("python"):
        _, _, program = shlex.split(command)
        printed = StringIO()
        with redirect_stdout(printed):
            exec(program, {})  # of this file
        return float(printed.getvalue())
    printed = StringIO()
    with redirect_stdout(printed), suppress(SystemExit):
        main([*shlex.split(command), "--format", "json"])
    return json.loads(printed.getvalue())


def _states(stage: int) -> Callable[[Any], float]:
    return lambda found: found["stages"][stage]["total_bytes"]


def _smaller(stage: int) -> Callable[[Any], float]:
    return lambda found: found["stages"][stage]["smaller_by"]


def _bubble(found: Any) -> float:
    return next(100 * float(row["bubble_ratio"]) for row in found if row["schedule"] == "1f1b")


def _all_reduced(axis: str, what: str) -> Callable[[Any], float]:
    """Bytes of all-reduces; sequence parallelism sends each as a reduce-scatter and an all-gather."""
    return lambda found: (
        sum(row["num_bytes"] for row in found["pipeline"][0]["volumes"] if row["axis"] == axis and row["what"] == what)
        / 2
    )


def memory() -> Iterator[Row]:
    states = "N (2 weights + 2 gradients + 8 AdamW), all in one rank"
    with_master = "N (2 + 2 + 12): AdamW's two states and a copy of the weights, in fp32"
    for name, parameters, truth in (("70B", "70e9", 840e9), ("405B", "405e9", 4.86e12)):
        yield Row(
            what=f"model states of {name}, 12 bytes",
            formula=states,
            command=f"plan budget --parameters {parameters} --no-master",
            pick=_states(0),
            truth=truth,
            within=0.5e6,
            form="GB",
        )
    yield Row(
        what="model states of 70B, 16 bytes",
        formula=with_master,
        command="plan budget --parameters 70e9",
        pick=_states(0),
        truth=1_120e9,
        within=0.5e6,
        form="GB",
        note="Mixed precision with fp32 weights in the optimizer needs 16 bytes, not 12.",
    )
    for size, option, first, second in ((16, "", 4.0, 8.0), (12, " --no-master", 3.0, 6.0)):
        for stage, limit in ((1, first), (2, second)):
            kept = size - 4 if stage == 1 else size - 2
            yield Row(
                what=f"ZeRO stage {stage}, {size} bytes: smaller by",
                formula=f"{size} / ({size - kept} + {kept} / n)",
                command=f"plan budget --parameters 70e9{option} --dp 1000000",
                pick=_smaller(stage),
                truth=limit,
                within=0.005,
                form="x",
                note="" if size == 16 else "4 x and 8 x are taught for 12 bytes too. They need 16.",
            )
    yield Row(
        what="70B on 64 H100, tp 4, pp 2, dp 8, ZeRO 1: fullest rank",
        formula="states / (tp pp), optimizer / dp, activations of 2 microbatches in flight",
        command="plan memory --model llama3-70b --seq 8192 --tp 4 --pp 2 --dp 8 --zero 1 --microbatches 64 --flash "
        "--no-dropout",
        pick=lambda found: found["largest_bytes"] / 2**30,
        truth=87.0,
        within=0.05,
        form="GiB",
        note="It does not fit into 80 GiB. With 4,096 tokens, stage 3 or full recomputation it does.",
    )


def pipeline() -> Iterator[Row]:
    for ranks, microbatches, truth in ((4, 8, 27.3), (4, 32, 8.6), (16, 8, 65.2), (16, 64, 19.0)):
        yield Row(
            what=f"bubble, {ranks} ranks and {microbatches} microbatches",
            formula="(P - 1) / (M + P - 1)",
            command=f"plan bubble --pp {ranks} --microbatches {microbatches}",
            pick=_bubble,
            truth=truth,
            within=0.05,
            form="%",
        )


def compute() -> Iterator[Row]:
    command = "plan budget --parameters 405e9 --tokens 15e12"
    yield Row(
        what="FLOPs of 405B on 15e12 tokens",
        formula="6 N D",
        command=command,
        pick=lambda found: found["flops"],
        truth=3.645e25,
        within=0.0005e25,
        form="FLOP",
    )
    yield Row(
        what="the same in GPU-years of H100",
        formula="6 N D / 989e12 / one year",
        command=f"{command} --gpu h100",
        pick=lambda found: found["gpu_years_at_peak"],
        truth=1_168,
        within=1,
        form="GPU-years",
        note="At the peak. At 40 % MFU it is 2.5 times as much.",
    )
    for mfu, truth in ((1.0, 17.8), (0.4, 44.4)):
        yield Row(
            what=f"days on 24,000 H100 at {mfu:.0%} MFU".replace("%", " %"),
            formula="6 N D / (GPUs x peak x MFU)",
            command=f"{command} --gpu h100 --gpus 24000 --mfu {mfu:g}",
            pick=lambda found: found["days"],
            truth=truth,
            within=0.05,
            form="days",
            note="17 days are taught. That is 100 % of the peak, which no training reaches." if mfu == 1 else "",
        )
    for what, formula, program, truth, note in (
        (
            "product of two 4,096 x 4,096 matrices in bf16",
            "2 n^3 / (3 n^2 x 2 bytes) = n / 3",
            "n = 4096; print(2 * n**3 / (3 * n * n * 2))",
            1365.3,
            "2,048 is taught. It leaves out that the result is written.",
        ),
        (
            "ReLU in bf16",
            "1 / (2 bytes read + 2 written)",
            "print(1 / (2 + 2))",
            0.25,
            "0.5 is taught. It leaves out that the result is written.",
        ),
    ):
        yield Row(
            what=f"FLOP per byte, {what}",
            formula=formula,
            command=f'python -c "{program}"',
            pick=float,
            truth=truth,
            within=0.05 if truth > 1 else 0.0005,
            form="FLOP/B",
            note=note,
        )


def communication() -> Iterator[Row]:
    yield Row(
        what="tensor-parallel traffic of 405B per step of 4,194,304 tokens",
        formula="(4 all-reduces x 126 layers + 2) x tokens x 16,384 x 2 bytes",
        command="plan comm --model llama3-405b --seq 8192 --tp 8 --microbatches 512",
        pick=_all_reduced("tp", "activations"),
        truth=(4 * 126 + 2) * 512 * 8192 * 16384 * 2,
        within=1,
        form="TB",
        note="64 TB and 71 s are taught. All these tokens pass one tensor-parallel group only without data "
        "parallelism: each of 128 groups has 1/128. NVLink's 900 GB/s are both directions, 450 each.",
    )
    yield Row(
        what="FSDP's traffic per rank and step, in sizes of the weights",
        formula="2 all-gathers + 1 reduce-scatter; a ring sends (n - 1) / n of each",
        command="plan comm --model llama3-70b --seq 8192 --dp 1024 --zero 3",
        pick=lambda found: (
            sum(row["num_bytes"] for row in found["pipeline"][0]["volumes"] if row["axis"] == "dp")
            / (2 * 70_552_387_584)
        ),
        truth=3.0,
        within=0.005,
        form="x",
        note="HSDP sends these 3 within a group, and 1 all-reduce of 1 / n of the gradients between groups.",
    )


def failures() -> Iterator[Row]:
    yield Row(
        what="interruptions per day on 16,384 GPUs",
        formula="24 h / (50,677 h / GPUs); Llama 3 had 419 in 54 days",
        command="plan cadence --mtbf-hours 50677 --parts 16384 --save-seconds 40",
        pick=lambda found: 24 / found["mtbf_hours"],
        truth=7.76,
        within=0.005,
        form="per day",
        note="2 a day are taught. 419 / 54 is 7.8.",
    )


SECTIONS: dict[str, Callable[[], Iterator[Row]]] = {
    "Memory": memory,
    "Pipeline": pipeline,
    "Compute": compute,
    "Communication": communication,
    "Failures": failures,
}


def shown(value: float, form: str) -> str:
    match form:
        case "GB":
            return f"{value / 1e9:,.4g} GB" if value < 1e12 else f"{value / 1e9:,.0f} GB"
        case "TB":
            return f"{value / 1e12:.1f} TB"
        case "FLOP":
            return f"{value:.4g} FLOP".replace("e+", "e")
        case "x":
            return f"{value:.2f} x"
        case "FLOP/B":
            return f"{value:,.4g} FLOP/B" if value < 1 else f"{value:,.0f} FLOP/B"
        case "GPU-years":
            return f"{value:,.0f} GPU-years"
        case "%" | "days" | "GiB":
            return f"{value:.1f} {form}"
    return f"{value:.2f} {form}"


def page() -> str:
    parts = [HEAD]
    for title, rows in SECTIONS.items():
        lines = ["| number | value | formula | often taught otherwise |", "|---|---|---|---|"]
        commands = []
        for row in rows():
            lines.append(f"| {row.what} | {shown(row.computed(), row.form)} | {row.formula} | {row.note} |")
            commands.append(row.command if row.command.startswith("python") else f"traincope {row.command}")
        parts.append(f"\n## {title}\n\n" + "\n".join(lines) + "\n\n")
        parts.append("".join(f"    {command}\n" for command in dict.fromkeys(commands)))
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
