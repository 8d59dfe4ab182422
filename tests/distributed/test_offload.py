"""What offloading saves: the most bytes that tensors take in memory during a real training, against the formula.

A number of the model takes 4 bytes as a parameter, 4 as a gradient, 8 as Adam's two moments (Rajbhandari et al. 2020,
arXiv:1910.02054, section 3.1, without its 16-bit copies). On n ranks of FSDP each has 1/n of them in memory. Files
take the parameters and the moments out of it; gradients stay, and during the update the moments of one block.
"""

import time
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from tests.distributed.layouts import small_config
from tests.distributed.pool import Pool
from tests.engine.tensor_bytes import TensorBytes
from traincope.engine.config import Config, OffloadConfig, ParallelConfig
from traincope.engine.trainer import Trainer

L, H, F, KV, V = 4, 32, 80, 16, 260
BLOCK = 2 * H * H + 2 * H * KV + 3 * H * F + 2 * H
ENDS = 2 * V * H + H
"""Embedding, output and last norm: more than a block, and updated as one."""
WHOLE = L * BLOCK + ENDS
STEPS = 4
A_BUFFER = 4 * BLOCK // 2 + 2048
"""Bytes of a block's shard, and scalars: what a collective may still hold when the next begins."""
GLOO_LETS_GO_SECONDS = 0.05
"""Its threads hold the last collective's tensors, here the norm's, a little longer than who waited for it."""
SHARDS, REPLICAS = ParallelConfig(fsdp=2), ParallelConfig(dp=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """Bytes of a rank in memory at their most, from the second step on: there is a state before it."""

    passes: int
    """In forward, backward and clipping; of some steps the least, for gloo lets go of buffers sooner or later."""
    update: int
    """While the optimizer steps."""


def peaks(config: Config) -> Peaks:
    with TensorBytes() as tensors:
        trainer = Trainer(config, device=torch.device("cpu"))
        steps = trainer.steps()
        next(steps)
        passes, updates = list[int](), list[int]()

        def passed(*_: object) -> None:
            time.sleep(GLOO_LETS_GO_SECONDS)
            passes.append(tensors.start_over())

        trainer.optimizer.register_step_pre_hook(passed)
        for _ in range(STEPS):
            tensors.start_over()
            next(steps)
            updates.append(tensors.peak)
    assert len(set(updates)) == 1, f"the update takes {updates} bytes"
    return Peaks(passes=min(passes), update=updates[0])


def of(pool: Pool, text: str, parallel: ParallelConfig, **offload: Any) -> Peaks:
    config = small_config(text, parallel, batch=2)
    config = replace(config, model=replace(config.model, vocabulary=V), offload=OffloadConfig(**offload))
    first, second = pool.run(peaks, config)
    assert first.update == second.update
    return Peaks(passes=min(first.passes, second.passes), update=first.update)


@pytest.fixture(scope="module")
def kept(two_ranks: Pool, text: str) -> Peaks:
    """Shards over two ranks, nothing offloaded."""
    return of(two_ranks, text, SHARDS)


def test_nothing_offloaded_is_sixteen_bytes_a_number_of_the_shard(kept: Peaks) -> None:
    """In the update there is nothing else but the batch, and scalars."""
    assert 0 < kept.update - 16 * WHOLE // 2 < 1024
    assert kept.passes > kept.update


@pytest.mark.parametrize(
    ("parameters", "optimizer", "in_passes", "in_update"),
    [
        pytest.param("file", "none", 4 * WHOLE, 4 * WHOLE, marks=pytest.mark.sweep),
        pytest.param("none", "file", 8 * WHOLE, 8 * (WHOLE - ENDS), marks=pytest.mark.sweep),
        ("file", "file", 12 * WHOLE, 4 * WHOLE + 8 * (WHOLE - ENDS)),
    ],
)
def test_files_take_parameters_and_moments_out_of_memory(
    two_ranks: Pool, text: str, kept: Peaks, parameters: str, optimizer: str, in_passes: int, in_update: int
) -> None:
    """A half of it on each of two ranks."""
    left = of(two_ranks, text, SHARDS, parameters=parameters, optimizer=optimizer)
    assert kept.passes - left.passes == pytest.approx(in_passes // 2, abs=A_BUFFER)
    assert kept.update - left.update == in_update // 2


@pytest.mark.parametrize("what", ["parameters", "optimizer"])
def test_the_memory_of_a_cpu_saves_a_cpu_nothing(two_ranks: Pool, text: str, kept: Peaks, what: str) -> None:
    there = of(two_ranks, text, SHARDS, **{what: "cpu"})
    assert there.update == kept.update
    assert there.passes == pytest.approx(kept.passes, abs=A_BUFFER)


def test_replicas_save_the_moments_of_all_blocks_but_one(two_ranks: Pool, text: str) -> None:
    whole, left = of(two_ranks, text, REPLICAS), of(two_ranks, text, REPLICAS, optimizer="file")
    assert whole.passes - left.passes == pytest.approx(8 * WHOLE, abs=A_BUFFER)
    assert whole.update - left.update == 8 * (WHOLE - ENDS)
