"""Observed and unobserved training are equal to the bit: losses, parameters, random states.

At level 2, so that each hook is on, in common layouts and with common additions.
"""

import functools
import random
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

import traincope
from tests.distributed.layouts import small_config
from tests.distributed.ranks.pool import Pool
from tests.distributed.recorded.bits import Bits, bits
from tests.distributed.selection import swept
from traincope.engine.config import Config, ExpertsConfig, ParallelConfig
from traincope.engine.trainer import Trainer
from traincope.events import Kind
from traincope.store import read_run

STEPS = 3


def recording(directory: str) -> Any:
    """A run, or nothing without a directory."""
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    return traincope.run(directory, level=2, budget=None) if directory else nullcontext()


def train_engine(directory: str, config: Config) -> Bits:
    with recording(directory):
        trainer = Trainer(config, device=torch.device("cpu"))
        losses = [result.loss for result in trainer.steps()]
        assert None not in losses
        return bits(losses, nn.ModuleList(trainer.modules.values()))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("text") / "squares.txt"
    path.write_text("\n".join(f"{n} squared is {n * n}" for n in range(1000)))
    return str(path)


LAYOUTS = {
    "ddp": ParallelConfig(dp=2),
    "fsdp": ParallelConfig(fsdp=2),
    "tp": ParallelConfig(tp=2),
    "cp ring": ParallelConfig(cp=2),
    "cp ulysses": ParallelConfig(cp=2, cp_method="ulysses"),
    "pp gpipe": ParallelConfig(pp=2, schedule="gpipe", microbatches=4),
    "pp 1f1b": ParallelConfig(pp=2, schedule="1f1b", microbatches=4),
}


def same(pool: Pool, tmp_path: Path, train: Callable[..., Bits], *arguments: object) -> None:
    """Compare each rank's bits of two trainings. The observed one must have recorded collectives."""
    observed = pool.run(train, str(tmp_path / "run"), *arguments)
    assert observed == pool.run(train, "", *arguments)
    ranks = read_run(tmp_path / "run").ranks
    assert len(ranks) == pool.size
    for rank in ranks:
        assert (rank.thread("main")["kind"] == Kind.COLLECTIVE).sum() >= STEPS
        failed = [state for state in rank.info.probes.values() if "failed" in state or "switched off" in state]
        assert failed == []
        assert rank.info.probes["collectives"] == "on", "and torch's flight recorder has counted as many"


@pytest.mark.parametrize("layout", swept(LAYOUTS, but=["fsdp"]))
@pytest.mark.parametrize("accumulation", [pytest.param(1, marks=pytest.mark.sweep), 2])
def test_layouts_are_identical_with_and_without_the_recorder(
    two_ranks: Pool, tmp_path: Path, text: str, layout: str, accumulation: int
) -> None:
    config = small_config(text, LAYOUTS[layout], accumulation=accumulation, steps=STEPS)
    same(two_ranks, tmp_path, train_engine, config)


def test_a_sharded_pipeline_is_identical_with_and_without_the_recorder(
    four_ranks: Pool, tmp_path: Path, text: str
) -> None:
    parallel = ParallelConfig(pp=2, fsdp=2, schedule="1f1b", microbatches=4)
    same(four_ranks, tmp_path, train_engine, small_config(text, parallel, steps=STEPS))


def test_experts(two_ranks: Pool, tmp_path: Path, text: str) -> None:
    config = replace(
        small_config(text, ParallelConfig(), steps=STEPS),
        parallel=ParallelConfig(fsdp=2, ep=2),
        experts=ExpertsConfig(number=4, ffn=24),
    )
    same(two_ranks, tmp_path, train_engine, config)


class Block(nn.Module):
    """A block with dropout, whose random numbers a recomputation must draw again."""

    def __init__(self, *, recomputed: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.2), nn.Linear(32, 16))
        self.recomputed = recomputed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.recomputed:
            return x + self.layers(x)
        result: torch.Tensor = x + checkpoint(self.layers, x, use_reentrant=False)
        return result


class Noisy(Dataset[torch.Tensor]):
    """Draws its samples at random in the process that loads them."""

    def __len__(self) -> int:
        return 4 * STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(16) + random.random() + index


def batches(workers: int) -> list[torch.Tensor]:
    return list(DataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=workers))


def sharded(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",))
    for block in model.children():
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def replicated(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model, process_group=dist.new_group())


def train_with(directory: str, wrap: Callable[[nn.Module], nn.Module], extra: str) -> Bits:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    warnings.filterwarnings("ignore", "The .grad attribute")  # torch.compile warns for each wrapped model
    with recording(directory):
        blocks = 1 if extra == "compile" else 3
        model = wrap(nn.Sequential(*(Block(recomputed=extra == "recomputation") for _ in range(blocks))))
        if extra == "compile":
            model.compile(backend="aot_eager")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        losses = []
        for batch in batches(0):
            loss = model(batch).square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
        torch._dynamo.reset()  # compiled code would stop later trainings of this process from counting FLOPs
        torch._dynamo.utils.counters.clear()
        return *bits(losses, model, optimizer), f"{breaks} graph breaks"


@pytest.mark.parametrize("extra", ["recomputation", "compile"])
@pytest.mark.parametrize("wrap", [replicated, pytest.param(sharded, marks=pytest.mark.sweep)])
def test_common_additions_are_identical_with_and_without_the_recorder(
    two_ranks: Pool, tmp_path: Path, wrap: Callable[[nn.Module], nn.Module], extra: str
) -> None:
    same(two_ranks, tmp_path, train_with, wrap, extra)


def test_loader_workers_are_identical_with_and_without_the_recorder(tmp_path: Path) -> None:
    """Runs in this process, because processes of a pool cannot have children."""

    @functools.cache
    def train(directory: str) -> Bits:
        with recording(directory):
            model = nn.Sequential(Block(recomputed=False), nn.Linear(16, 1))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
            losses = []
            for batch in batches(2):
                loss = model(batch).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
            return bits(losses, model, optimizer)

    state = torch.get_rng_state(), random.getstate()
    try:
        assert train(str(tmp_path / "run")) == train("")
    finally:
        torch.set_rng_state(state[0])
        random.setstate(state[1])


def test_the_comparison_detects_another_seed(two_ranks: Pool, text: str) -> None:
    """The comparison detects a difference."""
    config = small_config(text, LAYOUTS["ddp"], steps=STEPS)
    other = replace(config, train=replace(config.train, seed=1))
    ours, other_seed = two_ranks.run(train_engine, "", config), two_ranks.run(train_engine, "", other)
    assert all(first[0] != second[0] and first[1] != second[1] for first, second in zip(ours, other_seed, strict=True))
