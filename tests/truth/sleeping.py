"""Real gloo pipelines whose every action takes a known time: it sleeps, for ranks outnumber cores.

What their bubble must be is worked out here once more, by another way than the analysis goes: each
action starts when the one before it on its rank and all its inputs have ended, tried again until
nothing moves.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage

import traincope
from tests.distributed.pool import Pool
from traincope.analysis import Analysis
from traincope.engine.clipping import clip, gradient_norm
from traincope.engine.mesh import Layout
from traincope.engine.torch_private import Schedule
from traincope.plan.actions import Action
from traincope.plan.orders import SCHEDULES, Shape, orders

UNIT_SECONDS = 0.02
"""F, I and W of an ordinary stage; B takes two."""
SLOWER = 1.25
STEPS = 4
"""The first is warm-up."""
DISTURBED = 0.07
"""A step that other processes made so much longer measures them. This decides, never the bubble that was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A pipeline to be run."""

    schedule: str
    shape: Shape
    slow_stage: int | None = None
    """Its actions take a quarter longer."""
    clips: bool = False
    """Whether the gradients' norm, over all stages, is taken at the end of every step."""

    def factor(self, stage: int) -> float:
        return SLOWER if stage == self.slow_stage else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Idle time, mean over the ranks, as shares of the step that these durations make.

    Not of the step's wall time: what torch, gloo and other processes on the machine add has no known
    answer. It is jitter and transfer, and beside them the answer is known.
    """

    schedule: float
    imbalance: float

    @property
    def both(self) -> float:
        """The bubble without its jitter."""
        return self.schedule + self.imbalance


def truth(case: Case) -> Shares:
    """What the recorder and the analysis must find."""
    made, own = orders(case.schedule, case.shape), units(case)
    stages = range(case.shape.stages)
    even = {(kind, stage): sum(own[kind, s] for s in stages) / len(stages) for kind, stage in own}
    span, span_even = played_out(made, own), played_out(made, even)
    work = sum(own[kind, stage] for order in made.values() for kind, stage, _ in order) / case.shape.ranks
    return Shares(schedule=(span_even - work) / span, imbalance=(span - span_even) / span)


def units(case: Case) -> dict[tuple[str, int], float]:
    """(kind, stage) -> how long it takes."""
    made = orders(case.schedule, case.shape)
    return {
        (kind, stage): (2 if kind == "B" else 1) * case.factor(stage)
        for order in made.values()
        for kind, stage, _ in order
    }


def played_out(made: dict[int, tuple[Action, ...]], durations: dict[tuple[str, int], float]) -> float:
    """When the last action ends."""
    before = {action: order[at - 1] for order in made.values() for at, action in enumerate(order) if at}
    ends = dict.fromkeys((action for order in made.values() for action in order), 0.0)
    moved = True
    while moved:
        moved = False
        for action in ends:
            needed = [before.get(action), *inputs(action)]
            end = max(ends.get(one, 0.0) for one in needed) + durations[action.kind, action.stage]
            moved, ends[action] = moved or end != ends[action], end
    return max(ends.values())


def inputs(action: Action) -> list[Action]:
    kind, stage, microbatch = action
    if kind == "F":
        return [Action("F", stage - 1, microbatch)]
    if kind == "W":
        return [Action("I", stage, microbatch)]
    return [Action(kind, stage + 1, microbatch), Action("F", stage, microbatch)]


def run(pool: Pool, case: Case, directory: Path) -> Analysis:
    """Train it on the pool, recorded; the least disturbed of three times, and once if it was not disturbed."""
    analyses = []
    for attempt in range(3):
        analyses.append(_run(pool, case, directory / str(attempt)))
        if added(analyses[-1], case) < DISTURBED:
            break
    return min(analyses, key=lambda analysis: added(analysis, case))


def _run(pool: Pool, case: Case, directory: Path) -> Analysis:
    """A sum over the terms of every step is its wall time."""
    pool.run(train, str(directory), case)
    analysis = traincope.analyze(traincope.open_run(directory))
    for rank in analysis.ledger.ranks:
        assert (sum(values for values in rank.terms.values() if values is not None) == rank.wall_ns).all()
    return analysis


def measured(analysis: Analysis, case: Case) -> Shares:
    """In the median one of the counted steps."""
    step_ns = step_seconds(case) * 1e9
    schedule, imbalance = (_median_ns(analysis, f"bubble.{part}") / step_ns for part in ("schedule", "imbalance"))
    return Shares(schedule=schedule, imbalance=imbalance)


def step_seconds(case: Case) -> float:
    """How long a step takes if nothing but its actions does."""
    return UNIT_SECONDS * played_out(orders(case.schedule, case.shape), units(case))


def added(analysis: Analysis, case: Case) -> float:
    """How much longer the steps took, as a share."""
    assert analysis.median_step_ns is not None
    return analysis.median_step_ns / 1e9 / step_seconds(case) - 1


def _median_ns(analysis: Analysis, term: str) -> float:
    """Mean over the ranks of each step, median over the steps."""
    values = [rank.terms[term][rank.counted] for rank in analysis.ledger.ranks]
    return float(np.median(np.mean(values, axis=0)))


class Slow(torch.autograd.Function):
    """The identity, whose ends are known each way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, stage: "Stage") -> Tensor:
        ctx.stage = stage
        stage.sleep_until(units=1)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.stage.sleep_until(units=1)
        return gradients[0], None


class Stage(nn.Module):
    """A linear, then a sleep: of an action's time, what torch itself has not taken yet."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.unit_seconds = UNIT_SECONDS * factor
        self.began = 0.0

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = Slow.apply(self.linear(x), self)
        return result

    def sleep_until(self, *, units: int) -> None:
        time.sleep(max(self.began + units * self.unit_seconds - time.monotonic(), 0))


class TimedStage(PipelineStage):
    """Tells its module when an action begins."""

    submod: Stage
    units_of_weight = 1
    """What the end of W is counted from: the begin of W itself, or of the B that it is part of."""

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        self.submod.began = time.monotonic()
        return super().forward_one_chunk(*args, **kwargs)

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        self.submod.began, self.units_of_weight = time.monotonic(), 2
        return super().backward_one_chunk(*args, **kwargs)

    def backward_weight_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        self.submod.began, self.units_of_weight = time.monotonic(), 1
        return super().backward_weight_one_chunk(*args, **kwargs)

    def weight_gradient(self) -> Callable[[], None]:
        """What torch runs as W, or after I as the rest of B: a sleep, for I has computed it all."""
        return lambda: self.submod.sleep_until(units=self.units_of_weight)


def train(directory: str, case: Case) -> None:
    """Runs on every rank of a pool."""
    with traincope.run(directory) as recorded:
        mesh = init_device_mesh("cpu", (case.shape.ranks,), mesh_dim_names=("pp",))
        held = SCHEDULES[case.schedule].placement(dist.get_rank(), case.shape)
        modules = {stage: Stage(case.factor(stage)) for stage in held}
        schedule = Schedule(
            [_stage(module, stage, case, mesh.get_group("pp")) for stage, module in modules.items()],
            orders=orders(case.schedule, case.shape),
            microbatches=case.shape.microbatches,
            loss=lambda output, target: (output - target).square().sum(),
        )
        parameters = [parameter for module in modules.values() for parameter in module.parameters()]
        optimizer = torch.optim.SGD(parameters, lr=0.0)
        batch = torch.ones(2 * case.shape.microbatches, 4)
        for _ in range(STEPS):
            last = held[-1] == case.shape.stages - 1
            schedule.step(*((batch,) if held[0] == 0 else ()), target=batch if last else None, losses=[])
            if case.clips:
                clip(parameters, norm=gradient_norm(parameters, layout=Layout(mesh=mesh)), limit=1.0)
            optimizer.step()
            optimizer.zero_grad()
            recorded.step()


def _stage(module: Stage, stage: int, case: Case, group: dist.ProcessGroup) -> TimedStage:
    shape = torch.empty(2, 4, requires_grad=True)
    timed = TimedStage(
        module,
        stage_index=stage,
        num_stages=case.shape.stages,
        device=torch.device("cpu"),
        group=group,
        input_args=shape,
        output_args=shape,
    )
    timed.dw_builder = timed.weight_gradient
    return timed
