"""A checkpoint is loaded into another layout or number of ranks: the same parameters, and then the same training.

Parameters and moments are equal to the bit after loading. Losses of the next steps agree within the tolerance of
`test_equality`, because other layouts sum in another order.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.distributed.checkpoint.interrupted import SAVED, start
from tests.distributed.equality.test_equality import FP32
from tests.distributed.layouts import small_config, whole
from tests.distributed.ranks.pool import Pool
from tests.distributed.selection import swept
from traincope.engine.checkpoint.tensors import tensors_of
from traincope.engine.config import Config, DDPConfig, ExpertsConfig, OffloadConfig, ParallelConfig

SAVED_AS: dict[str, tuple[ParallelConfig, dict[str, object]]] = {
    "fsdp 4": (ParallelConfig(fsdp=4), {}),
    "zero-1 on dp 4": (ParallelConfig(dp=4), {"ddp": DDPConfig(shard_optimizer=True)}),
    "hsdp 2 x 2": (ParallelConfig(dp_replicate=2, fsdp=2), {}),
    "pp 2 x fsdp 2": (ParallelConfig(pp=2, fsdp=2, microbatches=2), {}),
    "pp 2, interleaved, x dp 2": (ParallelConfig(pp=2, dp=2, virtual=2, schedule="interleaved", microbatches=2), {}),
    "pp 2 in 6 stages, the ends without a layer, x fsdp 2": (
        ParallelConfig(pp=2, fsdp=2, virtual=3, schedule="interleaved", microbatches=2),
        {},
    ),
    "fsdp 2 x tp 2": (ParallelConfig(fsdp=2, tp=2), {}),
    "cp 2 x tp 2": (ParallelConfig(cp=2, tp=2), {}),
    "fsdp 4 in files": (ParallelConfig(fsdp=4), {"offload": OffloadConfig(parameters="file", optimizer="file")}),
}
LOADED_AS = SAVED_AS | {
    "fsdp 2": (ParallelConfig(fsdp=2), {}),
    "dp 2": (ParallelConfig(dp=2), {}),
    "tp 2": (ParallelConfig(tp=2), {}),
    "pp 2": (ParallelConfig(pp=2, microbatches=2), {}),
}
PAIRS = [f"{saved} -> {loaded}" for saved, loaded in product(SAVED_AS, LOADED_AS) if saved != loaded]
EXPERTS = ExpertsConfig(number=4, top_k=2, ffn=48)


@dataclass(frozen=True, slots=True, kw_only=True)
class Continued:
    """A training on one rank, after step SAVED."""

    tensors: Mapping[str, NDArray[np.float32]]
    """Whole parameters and moments after step SAVED, by name, of the parameters that the rank updates."""
    losses: list[float | None]
    """Losses of the following steps."""


def save(config: Config, directory: Path) -> Continued:
    trainer, saver = start(config, directory, in_launch=True)
    saver.begin(resume=False)
    steps = trainer.steps()
    for _ in range(SAVED):
        next(steps)
    saver.save()
    tensors = {name: whole(tensor).numpy().copy() for name, tensor in tensors_of(trainer).items()}
    return Continued(tensors=tensors, losses=[result.loss for result in steps])


def load(config: Config, directory: Path) -> Continued:
    trainer, saver = start(config, directory, in_launch=True)
    saver.begin(resume=True)
    assert trainer.done == SAVED
    tensors = {name: whole(tensor).numpy().copy() for name, tensor in tensors_of(trainer).items()}
    return Continued(tensors=tensors, losses=[result.loss for result in trainer.steps()])


def of_all(ranks: list[Continued]) -> dict[str, NDArray[np.float32]]:
    """The whole state by name. Ranks that have the same tensor agree."""
    tensors: dict[str, NDArray[np.float32]] = {}
    for rank in ranks:
        for name, tensor in rank.tensors.items():
            np.testing.assert_array_equal(tensors.setdefault(name, tensor), tensor, err_msg=name)
    return tensors


def assert_continued(saved: list[Continued], loaded: list[Continued]) -> None:
    before, after = of_all(saved), of_all(loaded)
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        np.testing.assert_array_equal(tensor, after[name], err_msg=name)
    for rank in loaded:
        assert rank.losses == pytest.approx(saved[0].losses, abs=FP32)


USUAL = {
    "zero-1 on dp 4 -> fsdp 2",
    "pp 2 in 6 stages, the ends without a layer, x fsdp 2 -> pp 2",
}


@pytest.mark.parametrize("pair", swept(PAIRS, but=USUAL))
def test_a_checkpoint_is_loaded_into_another_layout(
    two_ranks: Pool, four_ranks: Pool, text: str, tmp_path: Path, pair: str
) -> None:
    saved_as, loaded_as = pair.split(" -> ")
    parallel, tables = SAVED_AS[saved_as]
    saved = four_ranks.run(save, replace(small_config(text, parallel), **tables), tmp_path)
    parallel, tables = LOADED_AS[loaded_as]
    pool = {2: two_ranks, 4: four_ranks}[parallel.world_size]
    assert_continued(saved, pool.run(load, replace(small_config(text, parallel), **tables), tmp_path))


@pytest.mark.sweep
@pytest.mark.parametrize(
    "parallel", [ParallelConfig(fsdp=2), ParallelConfig(fsdp=2, ep=2), ParallelConfig(fsdp=4), ParallelConfig(dp=2)]
)
def test_experts_are_loaded_into_another_layout(
    two_ranks: Pool, four_ranks: Pool, text: str, tmp_path: Path, parallel: ParallelConfig
) -> None:
    config = replace(small_config(text, ParallelConfig()), experts=EXPERTS)
    spread = replace(config, parallel=ParallelConfig(fsdp=4, ep=2))
    saved = four_ranks.run(save, spread, tmp_path)
    pool = {2: two_ranks, 4: four_ranks}[parallel.world_size]
    assert_continued(saved, pool.run(load, replace(config, parallel=parallel), tmp_path))
