"""Memory that offloading saves: peak bytes of tensors during a real training, against the formula.

A number of the model takes 4 bytes as a parameter, 4 as a gradient, 8 as Adam's two moments (Rajbhandari et al. 2020,
arXiv:1910.02054, section 3.1, without its 16-bit copies). On n ranks of FSDP each holds 1/n of them in memory. Files
take parameters and moments out of memory. Gradients stay, and during the update the moments of one block.
"""

import time
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from tests.distributed.layouts import small_config
from tests.distributed.ranks.pool import Pool
from tests.distributed.selection import swept
from tests.engine.tensor_bytes import TensorBytes
from traincope.engine.config import Config, OffloadConfig, ParallelConfig
from traincope.engine.trainer import Trainer

L, H, F, KV, V = 4, 32, 80, 16, 260
BLOCK = 2 * H * H + 2 * H * KV + 3 * H * F + 2 * H
ENDS = 2 * V * H + H
"""Parameters of embedding, output and last norm. They are more than a block, and are updated together."""
WHOLE = L * BLOCK + ENDS
STEPS = 4
BUFFER_BYTES = 4 * BLOCK // 2 + 2048
"""Bytes of a block's shard and of scalars, which a collective may still hold when the next begins."""
GLOO_RELEASE_SECONDS = 0.05
"""Time for which gloo's threads hold the last collective's tensors (here the norm's) after the caller's wait."""
SHARDS, REPLICAS = ParallelConfig(fsdp=2), ParallelConfig(dp=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """Peak bytes of a rank in memory, from the second step on, when the optimizer has a state."""

    passes: int
    """Peak in forward, backward and clipping; the least of some steps, because gloo frees buffers sooner or later."""
    update: int
    """Peak during the optimizer step."""


def peaks(config: Config) -> Peaks:
    with TensorBytes() as tensors:
        trainer = Trainer(config, device=torch.device("cpu"))
        steps = trainer.steps()
        next(steps)
        passes, updates = list[int](), list[int]()

        def passed(*_: object) -> None:
            time.sleep(GLOO_RELEASE_SECONDS)
            passes.append(tensors.restart())

        trainer.optimizer.register_step_pre_hook(passed)
        for _ in range(STEPS):
            tensors.restart()
            next(steps)
            updates.append(tensors.peak)
    assert len(set(updates)) == 1, f"the update takes {updates} bytes"
    return Peaks(passes=min(passes), update=updates[0])


def peaks_of(pool: Pool, text: str, parallel: ParallelConfig, **offload: Any) -> Peaks:
    config = small_config(text, parallel, batch=2)
    config = replace(config, model=replace(config.model, vocabulary=V), offload=OffloadConfig(**offload))
    first, second = pool.run(peaks, config)
    assert first.update == second.update
    return Peaks(passes=min(first.passes, second.passes), update=first.update)


@pytest.fixture(scope="module")
def kept(two_ranks: Pool, text: str) -> Peaks:
    """Peaks of shards over two ranks without offloading."""
    return peaks_of(two_ranks, text, SHARDS)


def test_without_offload_a_number_of_the_shard_takes_sixteen_bytes(kept: Peaks) -> None:
    """The update holds nothing more than the batch and scalars."""
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
    """Each of two ranks holds half of them."""
    remaining = peaks_of(two_ranks, text, SHARDS, parameters=parameters, optimizer=optimizer)
    assert kept.passes - remaining.passes == pytest.approx(in_passes // 2, abs=BUFFER_BYTES)
    assert kept.update - remaining.update == in_update // 2


@pytest.mark.parametrize("setting", swept(["parameters", "optimizer"], but=["optimizer"]))
def test_offload_to_the_cpu_saves_nothing_on_a_cpu(two_ranks: Pool, text: str, kept: Peaks, setting: str) -> None:
    offloaded = peaks_of(two_ranks, text, SHARDS, **{setting: "cpu"})
    assert offloaded.update == kept.update
    assert offloaded.passes == pytest.approx(kept.passes, abs=BUFFER_BYTES)


def test_replicas_save_the_moments_of_all_blocks_but_one(two_ranks: Pool, text: str) -> None:
    whole, remaining = peaks_of(two_ranks, text, REPLICAS), peaks_of(two_ranks, text, REPLICAS, optimizer="file")
    assert whole.passes - remaining.passes == pytest.approx(8 * WHOLE, abs=BUFFER_BYTES)
    assert whole.update - remaining.update == 8 * (WHOLE - ENDS)
