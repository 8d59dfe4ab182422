"""Overhead of recording on a training: `python -m benchmarks.overhead`.

Three small trainings (DDP on 2 ranks, FSDP2 on 4, a pipeline of 2 stages x FSDP2 over 2), in one launch each, in
alternating blocks of steps: bare, bare again (the A/A row), traincope by default, traincope that may not lower its
level, torch.profiler. The step times of a block are divided by those of the bare block of the same round on the same
rank. A row is the median of these ratios over all blocks, of the slowest rank per step, with its bootstrap 95 %
interval. The recorder's own CPU time by its own meter is shown as a share of the step, the median of its blocks.
Reported, never asserted: the intervals of the own CPU time and of the ratio lie below 1 % of the step and below 1.01.
An interval that contains its budget shows nothing.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity

import traincope
from benchmarks.judging import judge
from benchmarks.paired import Block, in_turns, interval, ratios, step_seconds
from tests.distributed.ranks.pool import Pool
from traincope.events import BLOCK_STEPS
from traincope.record.instrumentation.guard import meter
from traincope.record.session.sampling import DEFAULT_BUDGET, FIRST_BLOCKS, NATIVE_BUDGETS

ROUNDS = 8
STEPS_A_BLOCK = 9
SETTLING = 4
"""Uncounted steps at the begin of a block, in which a run also counts FLOPs and samples memory closely."""
AS_IT_COMES, ALL_OF_IT = "run()", "run(budget=None)"
OBSERVED = (AS_IT_COMES, ALL_OF_IT)
KINDS = ("bare", "bare again", *OBSERVED, "torch.profiler")
JUDGING = {AS_IT_COMES: (FIRST_BLOCKS + 2) * BLOCK_STEPS}
"""Additional steps, after which a run has measured its own cost and records detail in windows if it is too high."""
OWN_BUDGET = 0.01
RATIO_BUDGET = 1.01
MIN_STEP_SECONDS = 0.020

Step = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed(Block):
    """A block under one kind of observation."""

    own_seconds: float
    """CPU time of the recorder in the counted steps."""
    settling_seconds: float
    """CPU time of the recorder in the uncounted steps."""


def main() -> None:
    """Measure and print."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    table = _table()
    for name, size, make in (("DDP x 2", 2, ddp), ("FSDP2 x 4", 4, fsdp), ("PP 2 x FSDP2 2", 4, pipeline)):
        pool = Pool(size)
        with tempfile.TemporaryDirectory() as directory:
            ranks = pool.run(measure, make, directory, timeout_seconds=400.0)
        pool.stop()
        _add_rows(table, name, ranks)
    load = os.getloadavg()[0]
    console = Console(width=120)
    console.print(table)
    console.print(
        (
            f"\nMedians of {ROUNDS} blocks of {STEPS_A_BLOCK - SETTLING} steps, each divided by the bare block next "
            f"to it. `at first` is the cost of the {SETTLING} steps before, in which a run counts FLOPs and samples "
            f"memory closely. `run()` judged its own cost over {JUDGING[AS_IT_COMES]} more steps before, and "
            f"recorded detail in windows if it was over {100 * DEFAULT_BUDGET:g} % "
            f"({100 * NATIVE_BUDGETS * DEFAULT_BUDGET:g} % with the native recorder). Load of the machine at the end "
            f"{load:.1f} on {os.cpu_count()} cores.\nRanks share cores, so every rank waits for other work of any "
            "rank."
        ),
        highlight=False,
    )


# -- on every rank --------------------------------------------------------------------------------


def measure(make: Callable[[], Step], directory: str) -> list[Observed]:
    """All blocks of this rank, in the same order on every rank."""
    step = make()
    for _ in range(3):
        step()
    return list(
        in_turns(
            KINDS, rounds=ROUNDS, block=lambda kind, number: _block(kind, step, Path(directory) / f"{kind}-{number}")
        )
    )


def _block(kind: str, step: Step, directory: Path) -> Observed:
    seconds = []
    with _observation(kind, directory):
        dist.barrier()
        began_ns = own_ns = meter.own_ns
        for _ in range(JUDGING.get(kind, 0)):
            step()
            traincope.step()
        for number in range(STEPS_A_BLOCK):
            if number == SETTLING:
                own_ns = meter.own_ns
            started = time.perf_counter()
            step()
            traincope.step()
            seconds.append(time.perf_counter() - started)
        settling_ns, own_ns = own_ns - began_ns, meter.own_ns - own_ns
    recorder_seconds = (own_ns / 1e9, settling_ns / 1e9) if kind in OBSERVED else (0.0, 0.0)
    return Observed(
        kind=kind, seconds=seconds[SETTLING:], own_seconds=recorder_seconds[0], settling_seconds=recorder_seconds[1]
    )


def _observation(kind: str, directory: Path) -> AbstractContextManager[object]:
    if kind == ALL_OF_IT:
        return traincope.run(directory, budget=None)
    if kind == AS_IT_COMES:
        return traincope.run(directory)
    return _profiler() if kind == "torch.profiler" else nullcontext()


@contextmanager
def _profiler() -> Iterator[None]:
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]):
        yield


def layers(number: int, width: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(number)))


def ddp() -> Step:
    return _step(DistributedDataParallel(layers(8, 512)), torch.ones(192, 512))


def fsdp() -> Step:
    model = layers(6, 384)
    return _step(_sharded(model, init_device_mesh("cpu", (4,), mesh_dim_names=("fsdp",))), torch.ones(128, 384))


def _sharded(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    for layer in model.children():
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def _step(model: nn.Module, batch: torch.Tensor) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def pipeline() -> Step:
    """1F1B with 4 microbatches."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "fsdp"))
    index, batch = mesh.get_local_rank("pp"), torch.ones(128, 384)
    model = _sharded(layers(4, 384), mesh["fsdp"])
    example = torch.empty(32, 384, requires_grad=True)
    stage = PipelineStage(
        model,
        stage_index=index,
        num_stages=2,
        device=torch.device("cpu"),
        group=mesh.get_group("pp"),
        input_args=example,
        output_args=example,
    )
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=lambda output, target: (output - target).square().mean())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        if index == 0:
            schedule.step(batch)
        else:
            schedule.step(target=batch)
        optimizer.step()
        optimizer.zero_grad()

    return step


# -- the table --------------------------------------------------------------------------------------


def _add_rows(table: Table, name: str, ranks: list[list[Observed]]) -> None:
    """Add a row for each kind except the reference, from the blocks of all ranks."""
    bare = step_seconds(ranks, "bare")
    length = float(np.median(bare))
    for kind in KINDS[1:]:
        times = ratios(step_seconds(ranks, kind), bare)
        low, high = interval(times)
        own = _own_ratios(ranks, kind) if kind in OBSERVED else None
        table.add_row(
            name if kind == KINDS[1] else "",
            {"bare again": "bare (A/A)"}.get(kind, kind),
            f"{1e3 * length:.1f}" if kind == KINDS[1] else "",
            f"{np.median(times):.3f}",
            f"{low:.3f}-{high:.3f}",
            "" if own is None else f"{100 * float(np.median(own)):.2f} %",
            f"{1e3 * _settling_seconds(ranks):.0f} ms" if kind == ALL_OF_IT else "",
            "" if own is None else _verdict(own, low, high, length),
        )
    table.add_section()


def _own_ratios(ranks: list[list[Observed]], kind: str) -> np.ndarray:
    """CPU time of the recorder divided by the wall time of the steps, per block of the rank with the highest share."""
    shares = [
        np.array([block.own_seconds / sum(block.seconds) for block in rank if block.kind == kind]) for rank in ranks
    ]
    return max(shares, key=lambda of_rank: float(np.median(of_rank)))


def _settling_seconds(ranks: list[list[Observed]]) -> float:
    """CPU time of the recorder in all first steps of a run together, for the rank with the highest."""
    return max(
        float(np.median([block.settling_seconds for block in rank if block.kind == ALL_OF_IT])) for rank in ranks
    )


def _verdict(own: np.ndarray, low: float, high: float, length: float) -> str:
    """Judge both costs by their intervals."""
    if length < MIN_STEP_SECONDS:
        return "step too short to judge"
    of_own = judge(*interval(own), budget=OWN_BUDGET)
    return f"own {of_own.value}, ratio {judge(low, high, budget=RATIO_BUDGET).value}"


def _table() -> Table:
    table = Table(title=f"Overhead of recording on a training (torch {torch.__version__})", box=None)
    for heading in (
        "training",
        "observed by",
        "step ms",
        "x bare",
        "95 % interval",
        "own CPU",
        "at first",
        "budget 1 %, 1.01",
    ):
        table.add_column(heading, justify="left" if heading in ("training", "observed by") else "right")
    return table


if __name__ == "__main__":
    main()
