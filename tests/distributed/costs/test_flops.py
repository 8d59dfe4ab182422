"""FLOPs counted on real ranks: each layout executes the model once, split or repeated as it declares."""

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
from evaluation.truth.formulas.flops import (
    EVERY,
    attention_of,
    measure,
    recomputed,
    rows,
    scores_again,
    squared_lengths,
)
from tests.distributed.ranks.pool import Pool
from tests.distributed.selection import swept
from tests.distributed.sweep.sweep import configuration
from traincope.analysis.efficiency.counted_flops import CountedFlops, counted_flops
from traincope.analysis.efficiency.declared_flops import FORMULA
from traincope.engine.model.shape import transformer
from traincope.events import Phase
from traincope.plan.model.flops import step_flops
from traincope.report.document.document import to_document

TWO = (
    "ddp 2",
    "ddp 2 in bf16",
    "fsdp 2, full",
    "tp 2 without sequence parallelism",
    "cp 2 ring, full",
    "pp 2 zb-v",
    "pp 2 1f1b, full in 3 layers of a stage",
    "pp 2 zb-v, full",
    "pp 2 zb-v, selective in 1 layer of a stage",
    "pp 2 dualpipev, full",
    "fsdp 2, ep 2, with a capacity, selective",
    "tp 2, packed, selective",
    "pp 2 zb-v, packed",
)
FOUR = (
    "fsdp 2 x tp 2, packed",
    "fsdp 2 x cp 2 ulysses",
    "pp 2 1f1b x tp 2",
    "pp 2 1f1b x fsdp 2, ep 2, with a capacity",
)
"""Layouts of `make truth-flops` on four ranks."""


def counts(directory: Path) -> list[CountedFlops]:
    counters = [counted_flops(rank) for rank in traincope.open_run(directory).ranks]
    assert all(each is not None for each in counters)
    return [each for each in counters if each is not None]


def assert_truth(pool: Pool, text: str, directory: Path, name: str) -> None:
    """Compare far more tightly than the promised 1 %, because the products are known exactly."""
    config = configuration(text, EVERY[name])
    table = rows(name, config, measure(pool, config, directory))
    assert {row.quantity: row.measured for row in table} == {
        row.quantity: pytest.approx(row.truth, rel=1e-9) for row in table
    }


USUAL = ("ddp 2 in bf16", "cp 2 ring, full", "tp 2 without sequence parallelism")


@pytest.mark.parametrize("name", swept(TWO, but=USUAL))
def test_flops_of_two_ranks_agree_with_the_formulas(two_ranks: Pool, text: str, tmp_path: Path, name: str) -> None:
    assert_truth(two_ranks, text, tmp_path / "run", name)


@pytest.mark.sweep
@pytest.mark.parametrize("name", FOUR)
def test_flops_of_four_ranks_agree_with_the_formulas(four_ranks: Pool, text: str, tmp_path: Path, name: str) -> None:
    assert_truth(four_ranks, text, tmp_path / "run", name)


@pytest.mark.parametrize("name", swept(["fsdp 2, full", "pp 2 zb-v, full"], but=["pp 2 zb-v, full"]))
def test_the_report_splits_executed_flops_into_model_recomputed_and_redundant(
    two_ranks: Pool, text: str, tmp_path: Path, name: str
) -> None:
    """HFU exceeds MFU by exactly the recomputed and redundant FLOPs, and the ledger has the time of recomputation."""
    config = configuration(text, EVERY[name])
    analysis = measure(two_ranks, config, tmp_path / "run")
    document = to_document(analysis)["utilization"]
    assert all((rank.terms["recompute"][rank.counted] > 0).all() for rank in analysis.ledger.ranks)
    model = step_flops(transformer(config), batch=config.train.batch, causal_half=True).model
    attention = attention_of(config, squared_lengths(config))
    repeated_flops, scores = recomputed(config, attention), scores_again(attention)
    assert (document["flops_convention"], document["model_flops_per_step"]) == (FORMULA, model)
    assert document["recomputed_flops_per_step"] == repeated_flops
    assert document["redundant_flops_per_step"] == pytest.approx(scores)
    assert document["executed_flops_per_step"] == pytest.approx(model + repeated_flops + scores)
    assert document["mfu"] is not None
    assert document["hfu"] is not None
    assert document["hfu"] / document["mfu"] - 1 == pytest.approx((repeated_flops + scores) / model)


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 64, bias=False), nn.Linear(64, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down(self.up(x).relu())
        return result


def train_split(directory: str) -> None:
    """Tensor parallelism: products are of DTensors, which have whole shapes."""
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
    for counters in counts(tmp_path / "run"):
        sums = {
            phase: sum(n for (counted_phase, _, dtype), n in counters.flops.items() if counted_phase is phase and dtype)
            for phase in Phase
        }
        assert (sums[Phase.FORWARD], sums[Phase.BACKWARD]) == (whole / 2, whole)


class Replicated(nn.Module):
    """Two split products, and one in the middle that each rank repeats."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.alike = Wide(), nn.Linear(16, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.alike(self.wide(x))
        return result


def train_replicated(directory: str) -> None:
    """Declares FLOPs per token: six per weight."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    model = parallelize_module(Replicated(), mesh, {"wide.up": ColwiseParallel(), "wide.down": RowwiseParallel()})
    with traincope.run(directory) as run:
        run.describe(flops_per_token=6 * (2 * 16 * 64 + 16 * 16), tokens_per_step=4, peak_flops=1e12)
        for _ in range(3):
            x = torch.ones(4, 16, requires_grad=True)
            model(x).sum().backward()
            run.step()


def test_a_product_that_all_ranks_repeat_counts_once_as_model_and_otherwise_as_redundant(
    two_ranks: Pool, tmp_path: Path
) -> None:
    two_ranks.run(train_replicated, str(tmp_path / "run"))
    work = traincope.analyze(traincope.open_run(tmp_path / "run")).utilization.work
    assert work.model == pytest.approx(6 * 4 * (2 * 16 * 64 + 16 * 16))
    assert work.redundant == pytest.approx(6 * 4 * 16 * 16)


def train_without_bubble(directory: str) -> None:
    """Stages 0 and 3 on rank 0, 1 and 2 on rank 1. Gradients of inputs and weights are computed separately."""
    local_stages = (dist.get_rank(), 3 - dist.get_rank())
    stages = [PipelineStage(Wide(), index, 4, torch.device("cpu")) for index in local_stages]
    schedule = ScheduleZBVZeroBubble(
        stages, 4, loss_fn=lambda output, expected_output: (output - expected_output).square().mean()
    )
    x = torch.ones(8, 16)
    with traincope.run(directory) as run:
        for _ in range(3):
            if dist.get_rank() == 0:
                schedule.step(x, target=x)
            else:
                schedule.step()
            run.step()


def test_a_zero_bubble_schedule_splits_the_backward_and_repeats_nothing(two_ranks: Pool, tmp_path: Path) -> None:
    """Four stages on 8 tokens: three times each product, except the gradient of the first stage's input."""
    two_ranks.run(train_without_bubble, str(tmp_path / "run"))
    product = 2 * 8 * 16 * 64
    total = sum(each.model(causal_half=False)["float32"] for each in counts(tmp_path / "run"))
    assert total == 4 * 3 * 2 * product - product
    assert not any(each.recomputed() for each in counts(tmp_path / "run"))


def train_recomputed(directory: str | None) -> list[float]:
    """Losses of a DDP training with recomputed layers."""
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
    for counters in counts(tmp_path / "run"):
        assert sum(n for (phase, _, _), n in counters.flops.items() if phase is Phase.RECOMPUTE) > 0
