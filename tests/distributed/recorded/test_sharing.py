"""Recorded exchanges of replicas and shards: axis, count and bytes of one rank's step against the shapes.

Bytes are counted as in test_axes: the whole of a gather or reduction, otherwise the bytes that one rank sends.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.fsdp import FSDPModule

import traincope
from tests.distributed.layouts import small_config
from tests.distributed.ranks.pool import Pool
from tests.distributed.recorded.test_axes import BLOCK, FLOAT, KV_HEADS, NORMS, STEPS, D, F, H, L, Table, V, recorded
from tests.distributed.selection import swept
from traincope.engine.config import DDPConfig, FSDPConfig, ParallelConfig
from traincope.engine.ranks.torch_private import DefaultAllGather
from traincope.engine.trainer import Trainer
from traincope.events import Kind
from traincope.plan.layout.communication import Traffic, volumes
from traincope.plan.layout.layout import Layout
from traincope.plan.model.precision import Precision
from traincope.plan.model.transformer import Transformer

WEIGHTS = L * BLOCK + 2 * V * H + NORMS
UNITS = [BLOCK + 2 * H] * L + [2 * V * H + H]
"""Numbers of each block, and of embedding, last norm and output together."""
BUCKETS = (9 * L + 3 + 2) * FLOAT
"""Two messages of rank 0 after the first step: the order in which DDP puts its 9 L + 3 parameters into buckets."""
NORM = {("fsdp", "all_reduce"): (1, FLOAT)}
"""The gradient norm is one number."""


def messages(ranks: int, *, block: int = 256) -> int:
    """Bytes of all units, each split over `ranks`: one byte per number of padded blocks, and one scale per block."""
    return sum(ranks * -(-unit // ranks // block) * (block + FLOAT) for unit in UNITS)


def traffic_of(pool: Pool, directory: Path, tables: dict[str, Any], **settings: Any) -> Table:
    parallel = ParallelConfig(fsdp=pool.size) if "fsdp" in tables else ParallelConfig(dp=pool.size)
    return recorded(pool, directory, parallel, tables=tables, **settings)


def test_zero_1_reduces_all_gradients_and_broadcasts_all_parameters(two_ranks: Pool, tmp_path: Path) -> None:
    """An all-reduce, and a broadcast of each rank's part.

    That is half as much again as in the paper, which reduces gradients only to the rank that uses them. All gradients
    fit into one bucket.
    """
    assert traffic_of(two_ranks, tmp_path, {"ddp": DDPConfig(shard_optimizer=True)}) == {
        ("dp", "all_reduce"): (1, WEIGHTS * FLOAT),
        ("dp", "broadcast"): (2 + 2 // (STEPS - 1), WEIGHTS * FLOAT + BUCKETS // (STEPS - 1)),
    }


def test_zero_2_gathers_once_a_step_and_reduces_after_each_of_two_microbatches(two_ranks: Pool, tmp_path: Path) -> None:
    assert traffic_of(two_ranks, tmp_path, {"fsdp": FSDPConfig(stage=2)}, accumulation=2) == {
        ("fsdp", "all_gather"): (L + 1, WEIGHTS * FLOAT),
        ("fsdp", "reduce_scatter"): (2 * (L + 1), 2 * WEIGHTS * FLOAT),
        **NORM,
    }


@pytest.mark.parametrize(
    ("stage", "gathers", "reductions"), [(2, 1, 2), pytest.param(3, 4, 1, marks=pytest.mark.sweep)]
)
def test_hsdp_sums_shards_over_replicas_once_per_step(
    four_ranks: Pool, tmp_path: Path, stage: Any, gathers: int, reductions: int
) -> None:
    """Two replicas of two shards, two microbatches. The sum over replicas has half of each unit's gradients."""
    parallel, tables = ParallelConfig(dp_replicate=2, fsdp=2), {"fsdp": FSDPConfig(stage=stage)}
    assert recorded(four_ranks, tmp_path, parallel, tables=tables, accumulation=2) == {
        ("fsdp", "all_gather"): (gathers * (L + 1), gathers * WEIGHTS * FLOAT),
        ("fsdp", "reduce_scatter"): (reductions * (L + 1), reductions * WEIGHTS * FLOAT),
        ("dp_replicate", "all_reduce"): (L + 1, WEIGHTS // 2 * FLOAT),
        **NORM,
    }


@pytest.mark.parametrize(("blocks", "units"), [pytest.param(3, 3, marks=pytest.mark.sweep), (4, 1)])
def test_units_of_several_blocks_travel_as_one(two_ranks: Pool, tmp_path: Path, blocks: int, units: int) -> None:
    assert traffic_of(two_ranks, tmp_path, {"fsdp": FSDPConfig(unit_blocks=blocks)}) == {
        ("fsdp", "all_gather"): (2 * units, 2 * WEIGHTS * FLOAT),
        ("fsdp", "reduce_scatter"): (units, WEIGHTS * FLOAT),
        **NORM,
    }


@pytest.mark.parametrize("compression", swept(["bf16", "fp16"], but=["bf16"]))
def test_16_bit_compression_halves_the_bytes_of_gradients(two_ranks: Pool, tmp_path: Path, compression: Any) -> None:
    assert traffic_of(two_ranks, tmp_path, {"ddp": DDPConfig(compression=compression)}) == {
        ("dp", "all_reduce"): (1, WEIGHTS * 2),
        ("dp", "broadcast"): (2 // (STEPS - 1), BUCKETS // (STEPS - 1)),
    }


def test_powersgd_sends_two_factors_of_matrices_that_they_at_least_halve(two_ranks: Pool, tmp_path: Path) -> None:
    """Vectors and small matrices, left factors, right factors.

    The thread that receives the left factors sends the right ones, and only DDP's reducer waits for them: their records
    have no end.
    """
    width = 4
    matrices = L * [(H, H), (H, H), (KV_HEADS * D, H), (KV_HEADS * D, H), (F, H), (F, H), (H, F)] + 2 * [(V, H)]
    cut = [(n, m) for n, m in matrices if 2 * (n + m) * width < n * m]
    whole = WEIGHTS - sum(n * m for n, m in cut)
    tables = {"ddp": DDPConfig(compression="powersgd", powersgd_rank=width, powersgd_start=2)}
    traffic_of(two_ranks, tmp_path, tables)
    sent = [whole, width * sum(n for n, _ in cut), width * sum(m for _, m in cut)]
    for rank in traincope.open_run(tmp_path / "run").ranks:
        records = np.concatenate([records[records["kind"] == Kind.COLLECTIVE] for records in rank.threads.values()])
        for step in range(2, STEPS):
            of_step = np.sort(records[records["step"] == step], order="sequence")
            assert of_step["value"].tolist() == [FLOAT * numbers for numbers in sent]


@pytest.mark.sweep
def test_qwz_gathers_bytes(two_ranks: Pool, tmp_path: Path) -> None:
    """3.9 times fewer bytes than with floats."""
    assert traffic_of(two_ranks, tmp_path, {"fsdp": FSDPConfig(quantize_weights=True)}) == {
        ("fsdp", "all_gather"): (2 * (L + 1), 2 * messages(2)),
        ("fsdp", "reduce_scatter"): (L + 1, WEIGHTS * FLOAT),
        **NORM,
    }
    assert 3.8 < WEIGHTS * FLOAT / messages(2) < 4.0


def test_qgz_exchanges_bytes(two_ranks: Pool, tmp_path: Path) -> None:
    assert traffic_of(two_ranks, tmp_path, {"fsdp": FSDPConfig(quantize_gradients=True, quantization_block=64)}) == {
        ("fsdp", "all_gather"): (2 * (L + 1), 2 * WEIGHTS * FLOAT),
        ("fsdp", "all_to_all"): (L + 1, messages(2, block=64)),
        **NORM,
    }


def test_hpz_gathers_for_backward_within_the_node(four_ranks: Pool, tmp_path: Path) -> None:
    """With qwZ forward gathers bytes over all ranks, and backward gathers floats over two."""
    assert traffic_of(four_ranks, tmp_path, {"fsdp": FSDPConfig(node_ranks=2, quantize_weights=True)}) == {
        ("fsdp", "all_gather"): (L + 1, messages(4)),
        ("fsdp_node", "all_gather"): (L + 1, WEIGHTS * FLOAT),
        ("fsdp", "reduce_scatter"): (L + 1, WEIGHTS * FLOAT),
        **NORM,
    }


def test_zeropp_is_planned_as_it_is_recorded() -> None:
    """The formula leaves out norms and the padding of each unit to whole blocks: 5 % of this small model."""
    shape = Transformer(
        layers=L,
        hidden=H,
        heads=H // D,
        kv_heads=KV_HEADS,
        ffn=F,
        gated_mlp=True,
        untied=True,
        vocabulary=V,
        sequence=16,
    )
    layout = Layout(dp=4, zero=3, node_ranks=2, quantize_weights=True, quantize_gradients=True)
    precision = Precision(weights="fp32", gradients="fp32")
    planned = {row.what: row.num_bytes for row in volumes(Traffic(shape=shape, layout=layout, precision=precision))}
    assert planned == {
        "weights": pytest.approx(messages(4), rel=0.05),
        "weights of a node": pytest.approx(WEIGHTS * FLOAT, rel=0.01),
        "gradients": pytest.approx(messages(4), rel=0.05),
    }


class Logged(DefaultAllGather):
    """Logs each gather of a unit."""

    def __init__(self, name: str, log: list[str]) -> None:
        self._name = name
        self._log = log

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        self._log.append(f"g{self._name}")
        return super().__call__(*arguments, **settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Order of gathers of units (`g`), forwards (`f`) and backwards (`b`) of blocks. The ends are unit `-`."""

    forward: str
    backward: str


def order_of_gathers(text: str, settings: FSDPConfig) -> Order:
    """Order in one step."""
    config = replace(small_config(text, ParallelConfig(fsdp=2), steps=1), fsdp=settings)
    trainer = Trainer(config, device=torch.device("cpu"))
    model: Any = trainer.modules[0]
    log: list[str] = []

    assert isinstance(model, FSDPModule)
    model.set_custom_all_gather(Logged("-", log))
    for name, block in model.blocks.items():
        block.set_custom_all_gather(Logged(name, log))
        block.register_forward_pre_hook(lambda *_, name=name: log.append(f"f{name}"))
        block.register_full_backward_pre_hook(lambda *_, name=name: log.append(f"b{name}"))
    list(trainer.steps())
    last = log.index(f"f{L - 1}") + 1
    return Order(forward=" ".join(log[:last]), backward=" ".join(log[last:]))


def test_prefetch_gathers_units_as_far_ahead_as_configured(two_ranks: Pool, text: str) -> None:
    as_torch = two_ranks.run(order_of_gathers, text, FSDPConfig())[0]
    two_ahead = two_ranks.run(order_of_gathers, text, FSDPConfig(prefetch=2))[0]
    assert as_torch == Order(forward="g- g0 f0 g1 f1 g2 f2 g3 f3", backward="g- g3 b3 g2 b2 g1 b1 g0 b0")
    assert two_ahead == Order(forward="g- g0 g1 g2 f0 g3 f1 f2 f3", backward="g- g3 g2 b3 g1 b2 g0 b1 b0")
