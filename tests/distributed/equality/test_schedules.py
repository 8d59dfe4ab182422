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
UNEVEN = {
    "gpipe": ParallelConfig(pp=2, schedule="gpipe", microbatches=2),
    "1f1b": ParallelConfig(pp=2, microbatches=4),
    "interleaved": ParallelConfig(pp=2, schedule="interleaved", microbatches=4),
    "1f1b with four stages per rank": ParallelConfig(pp=2, schedule="1f1b", virtual=4, microbatches=4),
    "zb-1p": ParallelConfig(pp=2, schedule="zb-1p", microbatches=4),
    "zb-v": ParallelConfig(pp=2, schedule="zb-v", microbatches=4),
    "dualpipev": ParallelConfig(pp=2, schedule="dualpipev", microbatches=4),
}
RECOMPUTED: dict[str, tuple[ParallelConfig, dict[str, object]]] = {
    "1f1b, full, 2 layers of a stage": (UNEVEN["1f1b"], {"recompute": "full", "recompute_layers": 2}),
    "zb-1p, full": (TWO_RANKS["zb-1p"], {"recompute": "full"}),
    "zb-v, full": (TWO_RANKS["zb-v"], {"recompute": "full"}),
    "zb-v, pointwise": (TWO_RANKS["zb-v"], {"recompute": "pointwise"}),
    "zb-v, selective, 1 layer of a stage": (TWO_RANKS["zb-v"], {"recompute": "selective", "recompute_layers": 1}),
    "dualpipev, full, 1 layer of a stage": (TWO_RANKS["dualpipev"], {"recompute": "full", "recompute_layers": 1}),
    "zb-v x fsdp, full": (FOUR_RANKS["zb-v x fsdp"], {"recompute": "full"}),
    "zb-v x tp, full": (FOUR_RANKS["zb-v x tp"], {"recompute": "full"}),
    "zb-v x cp, pointwise": (FOUR_RANKS["zb-v x cp"], {"recompute": "pointwise"}),
    "dualpipev, selective": (FOUR_RANKS["dualpipev"], {"recompute": "selective"}),
}


def deep(text: str, parallel: ParallelConfig, *, layers: int = 8, **train: object) -> Config:
    return small_config(text, parallel, layers=layers, **train)


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


@pytest.mark.parametrize("layout", swept(TWO_RANKS, but=["1f1b with four stages per rank", "zb-1p"]))
def test_two_ranks_train_as_one(two_ranks: Pool, text: str, alone: Outcome, layout: str) -> None:
    assert_same_training(two_ranks.run(train, deep(text, TWO_RANKS[layout])), alone)


@pytest.mark.parametrize("layout", swept(FOUR_RANKS, but=["interleaved", "zb-1p x fsdp", "dualpipev"]))
def test_four_ranks_train_as_one(four_ranks: Pool, text: str, alone: Outcome, layout: str) -> None:
    assert_same_training(four_ranks.run(train, deep(text, FOUR_RANKS[layout])), alone)


@pytest.fixture(scope="session")
def alone_with_seven_layers(text: str) -> Outcome:
    return train(deep(text, ParallelConfig(), layers=7))


@pytest.mark.parametrize("layout", swept(UNEVEN, but=["zb-v"]))
def test_stages_of_unequal_layers_train_as_one(
    two_ranks: Pool, text: str, alone_with_seven_layers: Outcome, layout: str
) -> None:
    """Two stages have 4 and 3 layers; four have 2, 2, 2 and 1; of eight the last has none."""
    config = deep(text, UNEVEN[layout], layers=7)
    assert_same_training(two_ranks.run(train, config), alone_with_seven_layers)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "parallel",
    [
        ParallelConfig(pp=4, schedule="interleaved", microbatches=4),
        ParallelConfig(pp=2, virtual=4, schedule="interleaved", fsdp=2, microbatches=4),
        ParallelConfig(pp=2, virtual=4, schedule="interleaved", tp=2, microbatches=4),
    ],
    ids=str,
)
def test_stages_without_layers_train_as_one(four_ranks: Pool, text: str, parallel: ParallelConfig) -> None:
    """Of eight stages, the first has only the embedding and the last only the output."""
    alone = train(deep(text, ParallelConfig(), layers=6))
    assert_same_training(four_ranks.run(train, deep(text, parallel, layers=6)), alone)


@pytest.mark.sweep
@pytest.mark.parametrize("schedule", ["1f1b", "zb-1p"])
def test_stages_of_unequal_layers_with_shards_train_as_one(
    four_ranks: Pool, text: str, alone_with_seven_layers: Outcome, schedule: str
) -> None:
    config = deep(text, ParallelConfig(pp=2, fsdp=2, schedule=schedule, microbatches=4), layers=7)
    assert_same_training(four_ranks.run(train, config), alone_with_seven_layers)


@pytest.mark.parametrize("case", swept(RECOMPUTED, but=["zb-v, full"]))
def test_recomputation_changes_no_pipeline(
    request: pytest.FixtureRequest, text: str, alone: Outcome, case: str
) -> None:
    """Losses, gradients and weights equal those of one process that recomputes nothing."""
    parallel, again = RECOMPUTED[case]
    pool: Pool = request.getfixturevalue({2: "two_ranks", 4: "four_ranks"}[parallel.world_size])
    assert_same_training(pool.run(train, deep(text, parallel, **again)), alone)  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", swept(["interleaved", "zb-v"], but=["zb-v"]))
def test_accumulation_changes_nothing(two_ranks: Pool, text: str, alone: Outcome, layout: str) -> None:
    config = deep(text, TWO_RANKS[layout], accumulation=2)
    assert_same_training(two_ranks.run(train, config), alone)


@pytest.mark.sweep
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
    two_ranks.run(train_recorded, str(tmp_path / "run"), small_config(text, parallel, batch=20, steps=2))
    assert [len(rank.steps) for rank in traincope.open_run(tmp_path / "run").ranks] == [2, 2]
