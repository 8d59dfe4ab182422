"""Counted on real ranks: every layout executes the model once, split or repeated as it says."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleZBVZeroBubble
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils import checkpoint

import traincope
from tests.distributed.layouts import STEPS, small_config
from tests.distributed.pool import Pool
from traincope.analysis.counted import CountedFlops, counted_flops
from traincope.engine.config import Config, ParallelConfig
from traincope.engine.trainer import Trainer
from traincope.events import Phase
from traincope.plan.flops import attention_forward, step_flops
from traincope.plan.transformer import Transformer

TEXT = "the quick brown fox jumps over the lazy dog\n" * 200


def train(directory: str, config: Config) -> None:
    with traincope.run(directory) as run:
        for _ in Trainer(config, device=torch.device("cpu")).steps():
            run.step()


def counts(directory: Path) -> list[CountedFlops]:
    found = [counted_flops(rank) for rank in traincope.open_run(directory).ranks]
    assert all(each is not None for each in found)
    return [each for each in found if each is not None]


@pytest.mark.parametrize(
    "parallel",
    [
        ParallelConfig(dp=2),
        ParallelConfig(fsdp=2),
        ParallelConfig(tp=2),
        ParallelConfig(tp=2, sequence_parallel=False),
        ParallelConfig(cp=2, cp_method="ulysses"),
        ParallelConfig(pp=2, microbatches=4),
        ParallelConfig(pp=2, microbatches=4, schedule="gpipe"),
    ],
)
def test_the_ranks_together_execute_what_the_formula_says(
    two_ranks: Pool, tmp_path: Path, parallel: ParallelConfig
) -> None:
    shape, batch, found = counted(two_ranks, tmp_path, parallel)
    total = sum(each.model(causal_half=False)["float32"] for each in found)
    assert total == step_flops(shape, batch=batch).model
    executed = sum(each.executed()["float32"] for each in found)
    again = attention_forward(shape, batch=batch) / 4
    assert executed == step_flops(shape, batch=batch, causal_half=True).model + again
    assert [each.coverage_ratio for each in found] == [1, 1]
    assert STEPS > 2


def test_a_ring_executes_the_causal_half_alone(two_ranks: Pool, tmp_path: Path) -> None:
    """Between two ranks no score is computed in vain: only each rank's own triangle has another half.

    That is why the count without halving is below the whole square's: (n + 1) / 2n of it, with n ranks.
    """
    shape, batch, found = counted(two_ranks, tmp_path, ParallelConfig(cp=2))
    halved = step_flops(shape, batch=batch, causal_half=True).model
    attention = 2 * (step_flops(shape, batch=batch).model - halved)
    assert sum(each.model(causal_half=True)["float32"] for each in found) == halved
    assert sum(each.executed()["float32"] for each in found) == halved + attention_forward(shape, batch=batch) / 4
    assert sum(each.model(causal_half=False)["float32"] for each in found) == halved + (3 / 4 - 1 / 2) * attention


def counted(pool: Pool, directory: Path, parallel: ParallelConfig) -> tuple[Transformer, int, list[CountedFlops]]:
    """The model's shape, sequences of a step, and what each rank counted."""
    text = directory / "text"
    text.write_text(TEXT)
    config = small_config(str(text), parallel)
    model = config.model
    shape = Transformer(
        layers=model.layers,
        hidden=model.hidden,
        heads=model.heads,
        kv_heads=model.kv_heads,
        ffn=model.ffn,
        gated_mlp=True,
        vocabulary=model.vocabulary,
        sequence=model.sequence,
    )
    pool.run(train, str(directory / "run"), config)
    return shape, config.train.batch, counts(directory / "run")


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 64, bias=False), nn.Linear(64, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down(self.up(x).relu())
        return result


def train_split(directory: str) -> None:
    """Tensor parallelism: the products are DTensors', whose shapes are the whole ones."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    model = parallelize_module(Wide(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    with traincope.run(directory) as run:
        for _ in range(3):
            x = torch.ones(4, 16, requires_grad=True)
            model(x).sum().backward()
            run.step()


def test_a_split_product_counts_as_the_part_that_the_rank_computes(two_ranks: Pool, tmp_path: Path) -> None:
    two_ranks.run(train_split, str(tmp_path / "run"))
    whole = 2 * 4 * 16 * 64 * 2
    for found in counts(tmp_path / "run"):
        sums = {phase: sum(n for (of, _, dtype), n in found.flops.items() if of is phase and dtype) for phase in Phase}
        assert (sums[Phase.FORWARD], sums[Phase.BACKWARD]) == (whole / 2, whole)


def train_without_bubble(directory: str) -> None:
    """Stages 0 and 3 on rank 0, 1 and 2 on rank 1; inputs' and weights' gradients are computed apart."""
    mine = (dist.get_rank(), 3 - dist.get_rank())
    stages = [PipelineStage(Wide(), index, 4, torch.device("cpu")) for index in mine]
    schedule = ScheduleZBVZeroBubble(stages, 4, loss_fn=lambda got, wanted: (got - wanted).square().mean())
    x = torch.ones(8, 16)
    with traincope.run(directory) as run:
        for _ in range(3):
            if dist.get_rank() == 0:
                schedule.step(x, target=x)
            else:
                schedule.step()
            run.step()


def test_a_zero_bubble_schedule_splits_the_backward_and_repeats_nothing(two_ranks: Pool, tmp_path: Path) -> None:
    """Four stages on 8 tokens, thrice each product but for the gradient of the first one's input."""
    two_ranks.run(train_without_bubble, str(tmp_path / "run"))
    product = 2 * 8 * 16 * 64
    total = sum(each.model(causal_half=False)["float32"] for each in counts(tmp_path / "run"))
    assert total == 4 * 3 * 2 * product - product
    assert not any(each.recomputed() for each in counts(tmp_path / "run"))


def train_recomputed(directory: str | None) -> list[float]:
    """Losses of a DDP training whose layers are recomputed."""
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.2), nn.Linear(32, 8)) for _ in range(2))
    model = nn.parallel.DistributedDataParallel(Checkpointed(layers), process_group=dist.new_group())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []

    def step() -> None:
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())

    if directory is None:
        for _ in range(4):
            step()
        return losses
    with traincope.run(directory) as run:
        for _ in range(4):
            step()
            run.step()
    return losses


class Checkpointed(nn.Module):
    def __init__(self, layers: nn.ModuleList) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint.checkpoint(layer, x, use_reentrant=False)
        return x


def test_a_recomputed_replica_trains_to_the_same_bits(two_ranks: Pool, tmp_path: Path) -> None:
    recorded = two_ranks.run(train_recomputed, str(tmp_path / "run"))
    assert recorded == two_ranks.run(train_recomputed, None)
    for found in counts(tmp_path / "run"):
        assert sum(n for (phase, _, _), n in found.flops.items() if phase is Phase.RECOMPUTE) > 0
