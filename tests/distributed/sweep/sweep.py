"""`make test-engine`: each layout of the table trains as one process does, and is recorded correctly.

Each layout trains for three steps under the recorder. Losses, gradient norms and final weights are compared with the
same training in one process. Each collective's axis, count and bytes are compared with the formulas in `traffic`,
and each pipeline action's stage and microbatch with the schedule's order.
"""

import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import traincope
from tests.distributed.layouts import whole
from tests.distributed.ranks.pool import Pool
from tests.distributed.sweep.layouts import LAYOUTS, MODEL, Tables
from tests.distributed.sweep.traffic import WORLD, Traffic, traffic, world_axis
from traincope.analysis import Analysis
from traincope.analysis.pipeline.replicas import replica_steps
from traincope.engine.config import (
    Config,
    DataConfig,
    ExpertsConfig,
    ModelConfig,
    OptimizerConfig,
    TrainConfig,
)
from traincope.engine.trainer import Trainer
from traincope.plan.pipeline.orders import orders
from traincope.topology import axis_order

STEPS = 3
COUNTED = STEPS - 1
"""Counted steps. The first step is the warm-up step."""
TOLERANCE = 5e-6
"""Absolute tolerance of losses around 5 and gradient norms around 1.5; the order of sums differs."""
WEIGHT_TOLERANCE = 5e-5
"""Absolute tolerance of weights. AdamW moves a weight by up to 7.5e-3 in these steps, even if its gradient is tiny. If
the gradient is as small as its rounding, the move differs by more than rounding (up to 9e-6, for one weight in a
hundred thousand)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """Results of a training on one rank."""

    losses: list[float]
    grad_norms: list[float]
    parameters: dict[str, NDArray[np.float32]]
    """Final whole parameters of this rank's layers, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Comparison of one layout with one process."""

    error: float
    """Largest difference of losses and gradient norms from one process."""
    weight_error: float
    recorded: Traffic
    expected: Traffic
    disordered: tuple[str, ...]
    """Pipeline ranks with recorded actions that differ from the schedule's."""

    @property
    def passed(self) -> bool:
        equal = self.error <= TOLERANCE and self.weight_error <= WEIGHT_TOLERANCE
        return equal and self.recorded == self.expected and not self.disordered


def configuration(text: str, tables: Tables) -> Config:
    """The layout's model and training. All train on `text`."""
    config = Config(
        model=MODEL,
        train=TrainConfig(steps=STEPS, batch=16),
        optimizer=OptimizerConfig(lr=3e-3, clip_norm=0.25, warmup=2),
    )
    config = replace(config, **tables)  # type: ignore[arg-type]
    return replace(config, data=replace(config.data, path=text, held_out=0.2))


def alone(tables: Tables) -> Tables:
    """The same model in one process."""
    return {name: table for name, table in tables.items() if name not in ("parallel", "ddp", "fsdp", "offload")}


def write_text(directory: Path) -> str:
    path = directory / "squares.txt"
    path.write_text("\n".join(f"{n} squared is {n * n}" for n in range(1000)))
    return str(path)


def train(config: Config, directory: str | None = None) -> Trained:
    """Train with the recorder on each rank of a pool, and without it in one process."""
    losses, grad_norms = [], []
    with nullcontext() if directory is None else traincope.run(directory, budget=None):
        trainer = Trainer(config, device=torch.device("cpu"))
        for result in trainer.steps():
            assert result.loss is not None
            assert result.grad_norm is not None
            losses.append(result.loss)
            grad_norms.append(result.grad_norm)
            traincope.step()
    parameters = {
        name.removeprefix("module."): whole(parameter).detach().numpy().copy()
        for module in trainer.modules.values()
        for name, parameter in module.named_parameters()
    }
    return Trained(losses=losses, grad_norms=grad_norms, parameters=parameters)


def judge(pool: Pool, config: Config, reference: Trained, directory: Path) -> Verdict:
    """Train a layout on the pool and compare."""
    outcomes = pool.run(train, config, str(directory), timeout_seconds=300.0)
    analysis = traincope.analyze(traincope.open_run(directory))
    return Verdict(
        error=max(_error(outcome, reference) for outcome in outcomes),
        weight_error=_weight_error(outcomes, reference),
        recorded={(row.axis, row.operation): (row.count, row.num_bytes) for row in analysis.comm},
        expected=traffic(config, steps=COUNTED),
        disordered=tuple(disordered(analysis, config)),
    )


def _error(outcome: Trained, reference: Trained) -> float:
    differences = (np.subtract(outcome.losses, reference.losses), np.subtract(outcome.grad_norms, reference.grad_norms))
    return max(float(np.abs(difference).max()) for difference in differences)


def _weight_error(outcomes: list[Trained], reference: Trained) -> float:
    """Largest difference of weights. Infinite unless the ranks together have each parameter."""
    if set().union(*(outcome.parameters for outcome in outcomes)) != set(reference.parameters):
        return np.inf
    pairs = [
        (value, reference.parameters[name])
        for rank_outcome in outcomes
        for name, value in rank_outcome.parameters.items()
    ]
    return max(float(np.abs(value - reference_value).max()) for value, reference_value in pairs)


def disordered(analysis: Analysis, config: Config) -> Iterator[str]:
    """Ranks with steps that differ from the schedule, stage by stage and microbatch by microbatch."""
    parallel = config.parallel
    columns = parallel.world_size // parallel.pp
    completed = {rank: len(steps.numbers) for steps in replica_steps(analysis.timeline) for rank in steps.ranks}
    if parallel.pp == 1:
        yield from (f"rank {rank}" for rank in completed)
        return
    planned = orders(parallel.order_name, parallel.pipeline)
    recorded_orders = {
        rank: order for steps in replica_steps(analysis.timeline) for rank, order in steps.replica.orders.items()
    }
    for rank in range(parallel.world_size):
        if completed.get(rank) != STEPS or recorded_orders[rank] != tuple(planned[rank // columns]):
            yield f"rank {rank}"


def main(names: list[str]) -> int:
    """Sweep the layouts whose names contain any of `names`; all layouts without names."""
    table = Table(title="Layouts against one process", box=None)
    for heading in (
        "layout",
        "error",
        "weights",
        f"collectives of {COUNTED} steps by axis: recorded = expected",
        "actions",
        "",
    ):
        table.add_column(heading, no_wrap=heading == "layout")
    chosen = {name: tables for name, tables in LAYOUTS.items() if not names or any(part in name for part in names)}
    passed, started = [], time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        text = write_text(Path(directory))
        for number, (name, verdict) in enumerate(sweep(text, chosen, Path(directory))):
            passed.append(verdict.passed)
            table.add_row(
                name,
                f"{verdict.error:.1e}",
                f"{verdict.weight_error:.1e}",
                *_cells(verdict),
                "equal" if verdict.passed else "FAILED",
            )
            Console(stderr=True).print(f"{number + 1} of {len(chosen)}: {name}", highlight=False)
    console = Console(width=150)
    console.print(table)
    console.print(
        f"{sum(passed)} of {len(passed)} layouts as one process (losses and gradient norms within {TOLERANCE:g}, "
        f"weights within {WEIGHT_TOLERANCE:g}), every collective and action as expected; "
        f"{time.monotonic() - started:.0f} s",
        highlight=False,
    )
    return int(not all(passed))


def sweep(text: str, layouts: Mapping[str, Tables], directory: Path) -> Iterator[tuple[str, Verdict]]:
    """Train the layouts with one pool at a time, because its processes are enough."""
    references: dict[tuple[ModelConfig, ExpertsConfig | None, DataConfig], Trained] = {}
    pool = Pool(0)
    for number, (name, tables) in enumerate(layouts.items()):
        config = configuration(text, tables)
        model = config.model, config.experts, config.data
        if model not in references:
            references[model] = train(configuration(text, alone(tables)))
        if pool.size != config.parallel.world_size:
            pool.stop()
            pool = Pool(config.parallel.world_size)
        yield name, judge(pool, config, references[model], directory / str(number))
        if world_axis(config) != WORLD:
            pool.stop()  # its mesh stays in torch's caches and would name the world's group
    pool.stop()


def _cells(verdict: Verdict) -> tuple[str, str]:
    return "; ".join(_differences(verdict) or _by_axis(verdict.recorded)), ", ".join(verdict.disordered) or "in order"


def _differences(verdict: Verdict) -> list[str]:
    return [
        f"{axis} {operation} {verdict.recorded.get((axis, operation))} != {verdict.expected.get((axis, operation))}"
        for axis, operation in sorted(verdict.recorded | verdict.expected)
        if verdict.recorded.get((axis, operation)) != verdict.expected.get((axis, operation))
    ]


def _by_axis(rank_traffic: Traffic) -> list[str]:
    axes = sorted({axis for axis, _ in rank_traffic}, key=axis_order)
    sums = {
        axis: np.sum([numbers for (on, _), numbers in rank_traffic.items() if on == axis], axis=0).tolist()
        for axis in axes
    }
    return [f"{axis} {times}, {_bytes(num_bytes)}" for axis, (times, num_bytes) in sums.items()]


def _bytes(number: int) -> str:
    return f"{number / 2**20:.2f} MiB" if number >= 2**16 else f"{number} B"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
