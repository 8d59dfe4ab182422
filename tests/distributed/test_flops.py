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
from tests.distributed.pool import Pool
from tests.distributed.selection import swept
from tests.distributed.sweep import configuration
from tests.truth.flops import EVERY, attention_of, measure, recomputed, rows, scores_again, squared_lengths
from traincope.analysis.counted import CountedFlops, counted_flops
from traincope.analysis.told import FORMULA
from traincope.engine.shape import transformer
from traincope.events import Phase
from traincope.plan.flops import step_flops
from traincope.report import to_document

TWO = (
    "ddp 2",
    "ddp 2 in bf16",
    "fsdp 2, full",
    "tp 2 without sequence parallelism",
    "cp 2 ring, full",
    "pp 2 zb-v",
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
"""Of the layouts of `make truth-flops`."""


def counts(directory: Path) -> list[CountedFlops]:
    found = [counted_flops(rank) for rank in traincope.open_run(directory).ranks]
    assert all(each is not None for each in found)
    return [each for each in found if each is not None]


def assert_truth(pool: Pool, text: str, directory: Path, name: str) -> None:
    """Far within the one percent that is promised: what is multiplied is known exactly."""
    config = configuration(text, EVERY[name])
    found = rows(name, config, measure(pool, config, directory))
    assert {row.what: row.measured for row in found} == {row.what: pytest.approx(row.truth, rel=1e-9) for row in found}


USUAL = ("ddp 2 in bf16", "fsdp 2, full", "cp 2 ring, full", "pp 2 zb-v, packed", "tp 2 without sequence parallelism")


@pytest.mark.parametrize("name", swept(TWO, but=USUAL))
def test_two_ranks_together_execute_what_the_formulas_say(
    two_ranks: Pool, text: str, tmp_path: Path, name: str
) -> None:
    assert_truth(two_ranks, text, tmp_path / "run", name)


@pytest.mark.parametrize("name", swept(FOUR, but=["pp 2 1f1b x fsdp 2, ep 2, with a capacity"]))
def test_four_ranks_together_execute_what_the_formulas_say(
    four_ranks: Pool, text: str, tmp_path: Path, name: str
) -> None:
    assert_truth(four_ranks, text, tmp_path / "run", name)


def test_the_report_splits_what_ran_into_model_recomputed_and_redundant(
    two_ranks: Pool, text: str, tmp_path: Path
) -> None:
    """HFU is beyond MFU by just what was recomputed and what was redundant."""
    config = configuration(text, EVERY["fsdp 2, full"])
    said = to_document(measure(two_ranks, config, tmp_path / "run"))["utilization"]
    model = step_flops(transformer(config), batch=config.train.batch, causal_half=True).model
    attention = attention_of(config, squared_lengths(config))
    again, scores = recomputed(config, attention), scores_again(attention)
    assert (said["flops_convention"], said["model_flops_per_step"]) == (FORMULA, model)
    assert said["recomputed_flops_per_step"] == again
    assert said["redundant_flops_per_step"] == pytest.approx(scores)
    assert said["executed_flops_per_step"] == pytest.approx(model + again + scores)
    assert said["mfu"] is not None
    assert said["hfu"] is not None
    assert said["hfu"] / said["mfu"] - 1 == pytest.approx((again + scores) / model)


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


class Replicated(nn.Module):
    """Between two products that are split one that every rank does alike."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.alike = Wide(), nn.Linear(16, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.alike(self.wide(x))
        return result


def train_replicated(directory: str) -> None:
    """Tells how many FLOPs a token takes: six a weight."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    model = parallelize_module(Replicated(), mesh, {"wide.up": ColwiseParallel(), "wide.down": RowwiseParallel()})
    with traincope.run(directory) as run:
        run.describe(flops_per_token=6 * (2 * 16 * 64 + 16 * 16), tokens_per_step=4, peak_flops=1e12)
        for _ in range(3):
            x = torch.ones(4, 16, requires_grad=True)
            model(x).sum().backward()
            run.step()


def test_a_product_that_all_ranks_repeat_is_the_models_once_and_redundant_beyond(
    two_ranks: Pool, tmp_path: Path
) -> None:
    two_ranks.run(train_replicated, str(tmp_path / "run"))
    work = traincope.analyze(traincope.open_run(tmp_path / "run")).utilization.work
    assert work.model == pytest.approx(6 * 4 * (2 * 16 * 64 + 16 * 16))
    assert work.redundant == pytest.approx(6 * 4 * 16 * 16)


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
