"""What replicas and shards exchange, as recorded: axis, count and bytes of one rank's step against the shapes.

Bytes are counted as in test_recorded_axes: the whole of what is gathered or reduced, what one rank sends otherwise.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.fsdp import FSDPModule

import traincope
from tests.distributed.layouts import STEPS, small_config
from tests.distributed.pool import Pool
from tests.distributed.test_recorded_axes import BLOCK, FLOAT, KV_HEADS, NORMS, D, F, H, L, Table, V, recorded
from traincope.engine.config import DDPConfig, FSDPConfig, ParallelConfig
from traincope.engine.torch_private import DefaultAllGather
from traincope.engine.trainer import Trainer
from traincope.events import Kind

WEIGHTS = L * BLOCK + 2 * V * H + NORMS
UNITS = [BLOCK + 2 * H] * L + [2 * V * H + H]
"""Numbers of each block, and of embedding, last norm and output."""
BUCKETS = (9 * L + 3 + 2) * FLOAT
"""Rank 0 tells, once after the first step, in which order DDP puts its 9 L + 3 parameters into buckets."""
NORM = {("fsdp", "all_reduce"): (1, FLOAT)}
"""The gradient's norm is one number."""


def messages(ranks: int, *, block: int = 256) -> int:
    """Bytes of all units, each cut over `ranks`: a byte a number of blocks filled up, and a scale a block."""
    return sum(ranks * -(-unit // ranks // block) * (block + FLOAT) for unit in UNITS)


def of(pool: Pool, directory: Path, tables: dict[str, Any], **settings: Any) -> Table:
    parallel = ParallelConfig(fsdp=pool.size) if "fsdp" in tables else ParallelConfig(dp=pool.size)
    return recorded(pool, directory, parallel, tables=tables, **settings)


def test_zero_1_reduces_all_gradients_and_sends_all_parameters_once_more(two_ranks: Pool, tmp_path: Path) -> None:
    """An all-reduce and a broadcast of each rank's part: half as much again as the paper's, whose gradients are only
    reduced to where they are used. All gradients fit in one bucket."""
    assert of(two_ranks, tmp_path, {"ddp": DDPConfig(shard_optimizer=True)}) == {
        ("dp", "all_reduce"): (1, WEIGHTS * FLOAT),
        ("dp", "broadcast"): (2, WEIGHTS * FLOAT + BUCKETS // (STEPS - 1)),
    }


def test_zero_2_gathers_once_a_step_and_reduces_after_each_of_two_microbatches(two_ranks: Pool, tmp_path: Path) -> None:
    assert of(two_ranks, tmp_path, {"fsdp": FSDPConfig(stage=2)}, accumulation=2) == {
        ("fsdp", "all_gather"): (L + 1, WEIGHTS * FLOAT),
        ("fsdp", "reduce_scatter"): (2 * (L + 1), 2 * WEIGHTS * FLOAT),
        **NORM,
    }


@pytest.mark.parametrize(("blocks", "units"), [(3, 3), (4, 1)])
def test_units_of_several_blocks_travel_as_one(two_ranks: Pool, tmp_path: Path, blocks: int, units: int) -> None:
    assert of(two_ranks, tmp_path, {"fsdp": FSDPConfig(unit_blocks=blocks)}) == {
        ("fsdp", "all_gather"): (2 * units, 2 * WEIGHTS * FLOAT),
        ("fsdp", "reduce_scatter"): (units, WEIGHTS * FLOAT),
        **NORM,
    }


@pytest.mark.parametrize("compression", ["bf16", "fp16"])
def test_half_the_bytes_of_a_gradient(two_ranks: Pool, tmp_path: Path, compression: Any) -> None:
    assert of(two_ranks, tmp_path, {"ddp": DDPConfig(compression=compression)}) == {
        ("dp", "all_reduce"): (1, WEIGHTS * 2),
        ("dp", "broadcast"): (0, BUCKETS // (STEPS - 1)),
    }


def test_powersgd_sends_two_factors_of_every_matrix_that_they_halve(two_ranks: Pool, tmp_path: Path) -> None:
    """Vectors and small matrices, left factors, right factors. The latter are sent by whichever thread sees the former
    arrive, and awaited by DDP's reducer alone: their records have no end."""
    width = 4
    matrices = L * [(H, H), (H, H), (KV_HEADS * D, H), (KV_HEADS * D, H), (F, H), (F, H), (H, F)] + 2 * [(V, H)]
    cut = [(n, m) for n, m in matrices if 2 * (n + m) * width < n * m]
    whole = WEIGHTS - sum(n * m for n, m in cut)
    tables = {"ddp": DDPConfig(compression="powersgd", powersgd_rank=width, powersgd_start=2)}
    of(two_ranks, tmp_path, tables)
    sent = [whole, width * sum(n for n, _ in cut), width * sum(m for _, m in cut)]
    for rank in traincope.open_run(tmp_path / "run").ranks:
        records = np.concatenate([records[records["kind"] == Kind.COLLECTIVE] for records in rank.threads.values()])
        for step in range(2, STEPS):
            of_step = np.sort(records[records["step"] == step], order="sequence")
            assert of_step["value"].tolist() == [FLOAT * numbers for numbers in sent]


def test_qwz_gathers_bytes(two_ranks: Pool, tmp_path: Path) -> None:
    """3.9 times fewer than the floats'."""
    assert of(two_ranks, tmp_path, {"fsdp": FSDPConfig(quantize_weights=True)}) == {
        ("fsdp", "all_gather"): (2 * (L + 1), 2 * messages(2)),
        ("fsdp", "reduce_scatter"): (L + 1, WEIGHTS * FLOAT),
        **NORM,
    }
    assert 3.8 < WEIGHTS * FLOAT / messages(2) < 4.0


def test_qgz_exchanges_bytes(two_ranks: Pool, tmp_path: Path) -> None:
    assert of(two_ranks, tmp_path, {"fsdp": FSDPConfig(quantize_gradients=True, quantization_block=64)}) == {
        ("fsdp", "all_gather"): (2 * (L + 1), 2 * WEIGHTS * FLOAT),
        ("fsdp", "all_to_all"): (L + 1, messages(2, block=64)),
        **NORM,
    }


def test_hpz_gathers_for_backward_within_the_node(four_ranks: Pool, tmp_path: Path) -> None:
    """With qwZ: forward's gather is of bytes, over all ranks; backward's of floats, between two."""
    assert of(four_ranks, tmp_path, {"fsdp": FSDPConfig(node_ranks=2, quantize_weights=True)}) == {
        ("fsdp", "all_gather"): (L + 1, messages(4)),
        ("fsdp_node", "all_gather"): (L + 1, WEIGHTS * FLOAT),
        ("fsdp", "reduce_scatter"): (L + 1, WEIGHTS * FLOAT),
        **NORM,
    }


class Logged(DefaultAllGather):
    """Writes down that a unit is gathered."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self._name = name
        self._seen = seen

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        self._seen.append(f"g{self._name}")
        return super().__call__(*arguments, **settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Which unit is gathered (`g`), which block computes forward (`f`) and backward (`b`); the ends are unit `-`."""

    forward: str
    backward: str


def order_of_gathers(text: str, settings: FSDPConfig) -> Order:
    """Of one step."""
    config = replace(small_config(text, ParallelConfig(fsdp=2), steps=1), fsdp=settings)
    trainer = Trainer(config, device=torch.device("cpu"))
    model: Any = trainer.modules[0]
    seen: list[str] = []

    assert isinstance(model, FSDPModule)
    model.set_custom_all_gather(Logged("-", seen))
    for name, block in model.blocks.items():
        block.set_custom_all_gather(Logged(name, seen))
        block.register_forward_pre_hook(lambda *_, name=name: seen.append(f"f{name}"))
        block.register_full_backward_pre_hook(lambda *_, name=name: seen.append(f"b{name}"))
    list(trainer.steps())
    last = seen.index(f"f{L - 1}") + 1
    return Order(forward=" ".join(seen[:last]), backward=" ".join(seen[last:]))


def test_units_are_gathered_as_far_ahead_as_asked(two_ranks: Pool, text: str) -> None:
    as_torch = two_ranks.run(order_of_gathers, text, FSDPConfig())[0]
    two_ahead = two_ranks.run(order_of_gathers, text, FSDPConfig(prefetch=2))[0]
    assert as_torch == Order(forward="g- g0 f0 g1 f1 g2 f2 g3 f3", backward="g- g3 b3 g2 b2 g1 b1 g0 b0")
    assert two_ahead == Order(forward="g- g0 g1 g2 f0 g3 f1 f2 f3", backward="g- g3 g2 b3 g1 b2 g0 b1 b0")
