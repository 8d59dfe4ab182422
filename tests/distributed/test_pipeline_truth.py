"""The bubble of real pipelines whose action times are known: sleeps, for ranks outnumber cores."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage

import traincope
from tests.distributed.pool import Pool
from traincope.analysis import Analysis
from traincope.engine.orders import ORDERS
from traincope.engine.torch_private import scheduled
from traincope.plan.bubble import bubble_ratio
from traincope.plan.orders import Shape

FORWARD_SECONDS, BACKWARD_SECONDS = 0.015, 0.030
STEPS = 4
WITHIN = 0.03
"""Of a step: what sleeping late and torch's own work between actions may add on a busy machine."""


class Slow(torch.autograd.Function):
    """The identity, in a known time each way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        time.sleep(FORWARD_SECONDS * factor)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        time.sleep(BACKWARD_SECONDS * ctx.factor)
        return gradients[0], None


class Stage(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = Slow.apply(self.linear(x), self.factor)
        return result


def train(directory: str, name: str, microbatches: int, slow_stage: int | None) -> None:
    """A pipeline over all ranks; `slow_stage` takes a quarter longer."""
    rank, size = dist.get_rank(), dist.get_world_size()
    with traincope.run(directory) as run:
        mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("pp",))
        module = Stage(1.25 if rank == slow_stage else 1.0)
        shape = torch.empty(2, 4, requires_grad=True)
        stage = PipelineStage(
            module,
            stage_index=rank,
            num_stages=size,
            device=torch.device("cpu"),
            group=mesh.get_group("pp"),
            input_args=shape,
            output_args=shape,
        )
        orders = [ORDERS[name](at, stages=size, microbatches=microbatches) for at in range(size)]
        schedule = scheduled(
            stage,
            orders=orders,
            microbatches=microbatches,
            loss=lambda output, target: (output - target).square().sum(),
        )
        optimizer = torch.optim.SGD(module.parameters(), lr=0.0)
        for _ in range(STEPS):
            batch = torch.ones(2 * microbatches, 4)
            inputs = (batch,) if rank == 0 else ()
            schedule.step(*inputs, target=batch if rank == size - 1 else None, losses=[], return_outputs=False)
            optimizer.step()
            optimizer.zero_grad()
            run.step()


def analysed(directory: Path) -> Analysis:
    analysis = traincope.analyze(traincope.open_run(directory))
    for rank in analysis.ledger.ranks:
        assert (sum(values for values in rank.terms.values() if values is not None) == rank.wall_ns).all()
    return analysis


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_equal_stages_idle_as_theory_says(two_ranks: Pool, tmp_path: Path, name: str) -> None:
    two_ranks.run(train, str(tmp_path / "run"), name, 4, None)
    analysis = analysed(tmp_path / "run")
    theory = bubble_ratio(name, Shape(ranks=2, microbatches=4))
    assert theory == pytest.approx(0.2)
    assert analysis.bubble is not None
    assert (analysis.bubble.schedule, analysis.bubble.num_microbatches) == (name, 4)
    assert analysis.ledger.share("bubble.schedule") == pytest.approx(theory, abs=WITHIN)
    assert analysis.ledger.share("bubble.imbalance") == pytest.approx(0.0, abs=WITHIN)
    assert analysis.bubble.replay_ratio == pytest.approx(theory, abs=WITHIN)


def test_four_stages_idle_as_theory_says(four_ranks: Pool, tmp_path: Path) -> None:
    four_ranks.run(train, str(tmp_path / "run"), "1f1b", 8, None)
    analysis = analysed(tmp_path / "run")
    assert analysis.bubble is not None
    assert analysis.bubble.theory_ratio == pytest.approx(3 / 11)
    assert analysis.ledger.share("bubble.schedule") == pytest.approx(3 / 11, abs=WITHIN)


def test_a_stage_a_quarter_slower_is_imbalance_of_the_others(two_ranks: Pool, tmp_path: Path) -> None:
    """GPipe with M = 4: the quick stage idles while the slow one works, 4 x 0.25 x (F + B) a step."""
    two_ranks.run(train, str(tmp_path / "run"), "gpipe", 4, 1)
    analysis = analysed(tmp_path / "run")
    assert analysis.bubble is not None
    quick, slow = analysis.bubble.stages
    work = FORWARD_SECONDS + BACKWARD_SECONDS
    step = 4 * 1.25 * work + work
    mean = 1.125 * work
    expected_schedule = mean / step
    expected_quick = 1.25 * 4 * work + work - 4 * work - mean
    expected_slow = work - mean
    assert quick.schedule_ns / quick.wall_ns == pytest.approx(expected_schedule, abs=WITHIN)
    assert quick.imbalance_ns / quick.wall_ns == pytest.approx(expected_quick / step, abs=WITHIN)
    assert slow.imbalance_ns / slow.wall_ns == pytest.approx(expected_slow / step, abs=WITHIN)
