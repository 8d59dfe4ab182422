"""Each pipeline schedule trains as one process does: losses, gradient norms and final weights.

Eight layers, so that four ranks can have two stages each. Tolerances as in test_equality.
"""

from pathlib import Path

import numpy as np
import pytest

import traincope
from tests.distributed.equality.test_equality import BF16, FP32, assert_equal
from tests.distributed.layouts import Outcome, small_config, train
from tests.distributed.ranks.pool import Pool
from tests.distributed.selection import swept
from traincope.engine.config import Config, ParallelConfig

TWO_RANKS = {
    "naive": ParallelConfig(pp=2, schedule="naive", microbatches=4),
    "interleaved": ParallelConfig(pp=2, schedule="interleaved", microbatches=4),
    "1f1b with four stages per rank": ParallelConfig(pp=2, schedule="1f1b", virtual=4, microbatches=4),
    "zb-1p": ParallelConfig(pp=2, schedule="zb-1p", microbatches=4),
    "zb-v": ParallelConfig(pp=2, schedule="zb-v", microbatches=4),
    "zb-v with fewer microbatches than it is written for": ParallelConfig(pp=2, schedule="zb-v", microbatches=2),
    "dualpipev": ParallelConfig(pp=2, schedule="dualpipev", microbatches=4),
}
FOUR_RANKS = {
    "naive": ParallelConfig(pp=4, schedule="naive", microbatches=2),
    "interleaved": ParallelConfig(pp=4, schedule="interleaved", microbatches=8),
    "zb-1p": ParallelConfig(pp=4, schedule="zb-1p", microbatches=8),
    "zb-v": ParallelConfig(pp=4, schedule="zb-v", microbatches=8),
    "dualpipev": ParallelConfig(pp=4, schedule="dualpipev", microbatches=8),
    "interleaved x fsdp": ParallelConfig(pp=2, fsdp=2, schedule="interleaved", microbatches=4),
    "1f1b with four stages per rank x fsdp": ParallelConfig(pp=2, fsdp=2, schedule="1f1b", virtual=4, microbatches=4),
    "zb-1p x fsdp": ParallelConfig(pp=2, fsdp=2, schedule="zb-1p", microbatches=4),
    "zb-v x fsdp": ParallelConfig(pp=2, fsdp=2, schedule="zb-v", microbatches=4),
    "zb-v x tp": ParallelConfig(pp=2, tp=2, schedule="zb-v", microbatches=4),
    "zb-v x cp": ParallelConfig(pp=2, cp=2, schedule="zb-v", microbatches=4),
    "interleaved x ddp": ParallelConfig(pp=2, dp=2, schedule="interleaved", microbatches=4),
}


def deep(text: str, parallel: ParallelConfig, **train: object) -> Config:
    return small_config(text, parallel, layers=8, **train)


@pytest.fixture(scope="session")
def alone(text: str) -> Outcome:
    return train(deep(text, ParallelConfig()))


def assert_same_training(outcomes: list[Outcome], alone: Outcome) -> None:
    assert_equal(outcomes, alone, tolerance=FP32)
    names = set()
    for outcome in outcomes:
        names.update(outcome.parameters)
        for name, parameter in outcome.parameters.items():
            np.testing.assert_allclose(parameter, alone.parameters[name], atol=FP32, rtol=0.0)
    assert names == set(alone.parameters)


@pytest.mark.parametrize("layout", swept(TWO_RANKS, but=["naive", "1f1b with four stages per rank", "zb-1p"]))
def test_two_ranks_train_as_one(two_ranks: Pool, text: str, alone: Outcome, layout: str) -> None:
    assert_same_training(two_ranks.run(train, deep(text, TWO_RANKS[layout])), alone)


@pytest.mark.parametrize("layout", swept(FOUR_RANKS, but=["interleaved", "zb-1p x fsdp", "zb-v", "dualpipev"]))
def test_four_ranks_train_as_one(four_ranks: Pool, text: str, alone: Outcome, layout: str) -> None:
    assert_same_training(four_ranks.run(train, deep(text, FOUR_RANKS[layout])), alone)


@pytest.mark.parametrize("layout", swept(["interleaved", "zb-v"], but=["zb-v"]))
def test_accumulation_changes_nothing(two_ranks: Pool, text: str, alone: Outcome, layout: str) -> None:
    config = deep(text, TWO_RANKS[layout], accumulation=2)
    assert_same_training(two_ranks.run(train, config), alone)


def test_in_bf16_too(four_ranks: Pool, text: str) -> None:
    alone = train(deep(text, ParallelConfig(), precision="bf16"))
    outcomes = four_ranks.run(train, deep(text, FOUR_RANKS["zb-v x fsdp"], precision="bf16"))
    assert_equal(outcomes, alone, tolerance=BF16)


def train_recorded(directory: str, config: Config) -> None:
    with traincope.run(directory):
        train(config)


def test_a_step_with_many_microbatches_is_recorded_as_one_step(two_ranks: Pool, text: str, tmp_path: Path) -> None:
    """Twenty backwards before the first optimizer step belong to one schedule, though no accumulation is that long."""
    parallel = ParallelConfig(pp=2, schedule="interleaved", microbatches=20)
    two_ranks.run(train_recorded, str(tmp_path / "run"), deep(text, parallel, batch=20, steps=2))
    assert [len(rank.steps) for rank in traincope.open_run(tmp_path / "run").ranks] == [2, 2]
