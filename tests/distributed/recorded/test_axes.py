"""Each collective of a layout is recorded on its axis, with the count and bytes that the shapes predict.

Bytes are counted as nccl-tests count them: the whole tensor of a gather or reduction, otherwise the bytes that one rank
sends.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import traincope
from tests.distributed.layouts import small_config
from tests.distributed.ranks.pool import Pool
from traincope.engine.config import Config, ParallelConfig
from traincope.engine.trainer import Trainer

B, L, H, HEADS, KV_HEADS, D, F, S, V = 16, 4, 32, 4, 2, 8, 80, 16, 260
"""Sequences, layers, hidden, heads, their size, feed-forward, tokens, vocabulary (even, so that shards need no
padding)."""
STEPS = 3
FLOAT = 4
STREAM = B * S * H * FLOAT
"""Bytes of the residual stream of a batch."""
BLOCK = 2 * H * H + 2 * H * KV_HEADS * D + 3 * H * F
"""Weights of a block's matrices. Its norms have 2 H more."""
NORMS = (2 * L + 1) * H

Table = dict[tuple[str, str], tuple[int, int]]
"""Axis and operation -> count and bytes, of one rank in one step."""


def train(directory: str, config: Config) -> None:
    with traincope.run(directory) as run:
        for _ in Trainer(config, device=torch.device("cpu")).steps():
            run.step()


def recorded(
    pool: Pool, directory: Path, parallel: ParallelConfig, *, tables: dict[str, Any] | None = None, **settings: Any
) -> Table:
    """Recording of a training that never reads its loss: the sum of losses uses the world, which has no axis."""
    directory.mkdir(exist_ok=True)
    text = directory / "text"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    config = small_config(str(text), parallel, steps=STEPS, log_every=STEPS + 1, **settings)
    config = replace(config, model=replace(config.model, vocabulary=V), **(tables or {}))
    pool.run(train, str(directory / "run"), config)
    rows = traincope.analyze(traincope.open_run(directory / "run")).comm
    rank_steps = pool.size * (STEPS - 1)
    return {(row.axis, row.operation): (row.count // rank_steps, row.num_bytes // rank_steps) for row in rows}


def fsdp_table(axis: str, *, weights: int) -> Table:
    """FSDP's row of the table.

    Each block, and embedding, last norm and output together, are gathered for forward and for backward and reduced
    once. The gradient norm is one number.
    """
    return {
        (axis, "all_gather"): (2 * (L + 1), 2 * weights * FLOAT),
        (axis, "reduce_scatter"): (L + 1, weights * FLOAT),
        (axis, "all_reduce"): (1, FLOAT),
    }


@pytest.mark.sweep
def test_traffic_of_tensor_and_sequence_parallelism(two_ranks: Pool, tmp_path: Path) -> None:
    """Two gathers and two reductions per block and pass, and one of each at each end of the model.

    Three all-reduces of the loss have one number per token, one has all norms' gradients, one the gradient norm.
    """
    assert recorded(two_ranks, tmp_path, ParallelConfig(tp=2)) == {
        ("tp", "all_gather"): (4 * L + 2, (4 * L + 2) * STREAM),
        ("tp", "reduce_scatter"): (4 * L + 2, (4 * L + 2) * STREAM),
        ("tp", "all_reduce"): (3 + 1 + 1, (3 * B * S + NORMS + 1) * FLOAT),
    }


def test_tensor_parallelism_alone(two_ranks: Pool, tmp_path: Path) -> None:
    """One all-reduce replaces each gather and reduction, and there are half as many."""
    assert recorded(two_ranks, tmp_path, ParallelConfig(tp=2, sequence_parallel=False)) == {
        ("tp", "all_reduce"): (4 * L + 2 + 3 + 1, (4 * L + 2) * STREAM + (3 * B * S + 1) * FLOAT),
    }


@pytest.mark.sweep
@pytest.mark.parametrize(("mode", "recomputed"), [("selective", 0), ("full", 1)])
def test_traffic_of_recomputation(two_ranks: Pool, tmp_path: Path, mode: str, recomputed: int) -> None:
    """Full: a block's two gathers and its inner reduction. Backward needs nothing after its last product."""
    table = recorded(two_ranks, tmp_path, ParallelConfig(tp=2), recompute=mode)
    assert table["tp", "all_gather"][0] == 4 * L + 2 + recomputed * 2 * L
    assert table["tp", "reduce_scatter"][0] == 4 * L + 2 + recomputed * L


def train_on_an_unnamed_mesh(directory: str, by_two: bool) -> None:
    """Feed-forward blocks by `parallelize_module` on all ranks; `by_two`: DDP on the first axis of a mesh of two."""
    model = nn.Sequential(nn.Linear(H, F, bias=False), nn.Linear(F, H, bias=False))
    with traincope.run(directory) as run:
        if by_two:
            group = init_device_mesh("cpu", (2, dist.get_world_size() // 2)).get_group(0)
            model = DistributedDataParallel(model, process_group=group)  # type: ignore[assignment]
        else:
            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
            parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
        for _ in range(STEPS):
            model(torch.ones(B, H, requires_grad=True)).sum().backward()
            run.step()


def axes_on_an_unnamed_mesh(pool: Pool, directory: Path, *, by_two: bool) -> Table:
    pool.run(train_on_an_unnamed_mesh, str(directory), by_two)
    rows = traincope.analyze(traincope.open_run(directory)).comm
    rank_steps = pool.size * (STEPS - 1)
    return {(row.axis, row.operation): (row.count // rank_steps, row.num_bytes // rank_steps) for row in rows}


def test_what_uses_a_mesh_without_names_names_its_axis(two_ranks: Pool, four_ranks: Pool, tmp_path: Path) -> None:
    """Tensor parallelism reduces the stream in forward and in backward; DDP reduces one bucket."""
    split = axes_on_an_unnamed_mesh(two_ranks, tmp_path / "tp", by_two=False)
    assert split == {("tp", "all_reduce"): (2, 2 * B * H * FLOAT)}
    replicated = axes_on_an_unnamed_mesh(four_ranks, tmp_path / "dp", by_two=True)
    assert replicated["dp", "all_reduce"] == (1, 2 * H * F * FLOAT)
    assert {axis for axis, _ in replicated} == {"dp"}


def test_a_ring(two_ranks: Pool, tmp_path: Path) -> None:
    """Keys and values once round per pass. Backward has one more hop for their gradients."""
    hops = 1 + 1 + 2
    keys_and_values = 2 * (B * KV_HEADS * S * D * FLOAT) // 2
    assert recorded(two_ranks, tmp_path, ParallelConfig(cp=2)) == {
        ("cp", "send"): (L * hops, L * hops * keys_and_values),
        ("cp", "recv"): (L * hops, L * hops * keys_and_values),
        **fsdp_table("fsdp_cp", weights=L * BLOCK + 2 * V * H + NORMS),
    }


@pytest.mark.sweep
def test_ulysses(two_ranks: Pool, tmp_path: Path) -> None:
    """Two exchanges per pass: queries, keys and values to all tokens, attention's output back."""
    token = (2 * HEADS + 2 * KV_HEADS) * D * FLOAT
    assert recorded(two_ranks, tmp_path, ParallelConfig(cp=2, cp_method="ulysses")) == {
        ("cp", "all_to_all"): (4 * L, 2 * L * token * B * S // 2),
        **fsdp_table("fsdp_cp", weights=L * BLOCK + 2 * V * H + NORMS),
    }


def test_traffic_of_selective_recomputation(two_ranks: Pool, tmp_path: Path) -> None:
    """Attention's inputs travel again.

    Keys and values go once more round the ring. Of the exchanges only the first is repeated, because nothing reads the
    result of the second.
    """
    ring = recorded(two_ranks, tmp_path / "ring", ParallelConfig(cp=2), recompute="selective")
    assert ring["cp", "send"] == (L * 5, L * 5 * 2 * (B * KV_HEADS * S * D * FLOAT) // 2)
    heads = recorded(two_ranks, tmp_path / "heads", ParallelConfig(cp=2, cp_method="ulysses"), recompute="selective")
    token = (3 * (HEADS + 2 * KV_HEADS) + 2 * HEADS) * D * FLOAT
    assert heads["cp", "all_to_all"] == (5 * L, L * token * B * S // 2)


def test_shards_of_tensor_parallel_parts(four_ranks: Pool, tmp_path: Path) -> None:
    """Half the sequences on each rank of `fsdp`, half the matrices on each rank of `tp`.

    FSDP sums each norm's gradient over `tp` before it reduces it.
    """
    assert recorded(four_ranks, tmp_path, ParallelConfig(fsdp=2, tp=2)) == {
        ("tp", "all_gather"): (4 * L + 2, (4 * L + 2) * STREAM // 2),
        ("tp", "reduce_scatter"): (4 * L + 2, (4 * L + 2) * STREAM // 2),
        ("tp", "all_reduce"): (3 + 2 * L + 1 + 1, (3 * B * S // 2 + NORMS + 1) * FLOAT),
        **fsdp_table("fsdp", weights=(L * BLOCK + 2 * V * H) // 2 + NORMS),
    }


@pytest.mark.sweep
def test_replicas_of_tensor_parallel_parts(four_ranks: Pool, tmp_path: Path) -> None:
    """Gradients of each block and of the ends are summed over `dp` as they appear. Nothing is gathered there."""
    table = recorded(four_ranks, tmp_path, ParallelConfig(dp=2, tp=2))
    weights = (L * BLOCK + 2 * V * H) // 2 + NORMS
    assert {key: row for key, row in table.items() if key[0] != "tp"} == {
        ("dp", "all_reduce"): (L + 1, weights * FLOAT),
    }


@pytest.mark.sweep
def test_replicas_of_context_parallel_ranks(four_ranks: Pool, tmp_path: Path) -> None:
    """Gradients are one bucket, averaged over replicas and parts of sequences at once. Parameters do not move.

    After the first step rank 0 sends, in two messages, the order in which DDP puts its parameters into buckets.
    """
    table = recorded(four_ranks, tmp_path, ParallelConfig(dp=2, cp=2))
    weights = L * BLOCK + 2 * V * H + NORMS
    hops, keys_and_values = 4, B // 2 * KV_HEADS * S * D * FLOAT
    assert table == {
        ("cp", "send"): (L * hops, L * hops * keys_and_values),
        ("cp", "recv"): (L * hops, L * hops * keys_and_values),
        ("dp_cp", "all_reduce"): (1, weights * FLOAT),
        ("dp_cp", "broadcast"): (2 // (STEPS - 1), (9 * L + 3 + 2) * FLOAT // (STEPS - 1)),
    }


def test_stages_of_context_parallel_ranks(four_ranks: Pool, tmp_path: Path) -> None:
    """The ring is `cp`, and messages of stages are `pp`. A stage sends its part of the stream and gets its gradient."""
    table = recorded(four_ranks, tmp_path, ParallelConfig(pp=2, cp=2, microbatches=4))
    hops, keys_and_values = 4, B * KV_HEADS * S * D * FLOAT
    assert table["cp", "send"] == table["cp", "recv"] == (4 * hops * L // 2, hops * L // 2 * keys_and_values)
    assert table["pp", "send"] == table["pp", "recv"] == (4, STREAM // 2)
    assert {axis for axis, _ in table} == {"cp", "pp", "fsdp_cp"}
