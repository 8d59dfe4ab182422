"""Experts spread over ranks train as on one rank.

The tolerance is that of `test_equality.py`; the largest difference was 1e-6. A capacity drops choices per sequence, so
one process drops the same choices, however ranks and microbatches split the batch.
"""

from dataclasses import dataclass, replace

import pytest
import torch

from tests.distributed.equality.test_equality import BF16, FP32, assert_equal, assert_same_weights
from tests.distributed.layouts import Outcome, small_config, train
from tests.distributed.ranks.pool import Pool
from tests.distributed.selection import swept
from traincope.engine.config import Config, ExpertsConfig, ParallelConfig
from traincope.engine.model.expert_load import ExpertLoad
from traincope.engine.model.router import Router
from traincope.engine.trainer import Trainer

UNCAPPED = ExpertsConfig(number=8, top_k=2, ffn=24)
CAPPED = replace(UNCAPPED, capacity_factor=1.0, shared=True)
HOT = replace(UNCAPPED, hot_expert=3, number=4)

TWO_RANKS = {
    "ep": (ParallelConfig(fsdp=2, ep=2), UNCAPPED),
    "ep that drops": (ParallelConfig(fsdp=2, ep=2), CAPPED),
    "ep with a hot expert": (ParallelConfig(fsdp=2, ep=2), HOT),
    "fsdp of experts": (ParallelConfig(fsdp=2), UNCAPPED),
    "tp": (ParallelConfig(tp=2), UNCAPPED),
    "tp that drops": (ParallelConfig(tp=2), CAPPED),
    "tp without sequence parallelism": (ParallelConfig(tp=2, sequence_parallel=False), CAPPED),
}
FOUR_RANKS = {
    "ep": (ParallelConfig(fsdp=4, ep=4), HOT),
    "ep x efsdp that drops": (ParallelConfig(fsdp=4, ep=2), CAPPED),
    "ep over cp": (ParallelConfig(fsdp=2, cp=2, ep=4), UNCAPPED),
    "ep over cp that drops": (ParallelConfig(fsdp=2, cp=2, ep=4), CAPPED),
    "dp x cp ulysses that drops": (ParallelConfig(dp=2, cp=2, cp_method="ulysses"), CAPPED),
    "fsdp x tp that drops": (ParallelConfig(fsdp=2, tp=2), CAPPED),
    "cp x tp": (ParallelConfig(cp=2, tp=2), UNCAPPED),
    "ep x tp that drops": (ParallelConfig(fsdp=2, tp=2, ep=2), CAPPED),
    "ep x tp without sequence parallelism": (ParallelConfig(fsdp=2, tp=2, ep=2, sequence_parallel=False), HOT),
    "pp zb-v x tp": (ParallelConfig(pp=2, tp=2, schedule="zb-v", microbatches=4), HOT),
    "ep in hsdp": (ParallelConfig(dp_replicate=2, fsdp=2, ep=2), CAPPED),
    "pp 1f1b x ep": (ParallelConfig(pp=2, fsdp=2, ep=2, microbatches=4), UNCAPPED),
    "pp zb-v x ep that drops": (ParallelConfig(pp=2, fsdp=2, ep=2, schedule="zb-v", microbatches=4), CAPPED),
}


def config_of(text: str, parallel: ParallelConfig, experts: ExpertsConfig, **settings: object) -> Config:
    return replace(small_config(text, ParallelConfig(), **settings), parallel=parallel, experts=experts)


@pytest.fixture(scope="session")
def alone(text: str) -> dict[ExpertsConfig, Outcome]:
    return {experts: train(config_of(text, ParallelConfig(), experts)) for experts in (UNCAPPED, CAPPED, HOT)}


def test_the_references_differ_and_learn(alone: dict[ExpertsConfig, Outcome]) -> None:
    assert len({outcome.losses[-1] for outcome in alone.values()}) == len(alone)
    assert all(outcome.losses[-1] < outcome.losses[0] - 0.2 for outcome in alone.values())


@pytest.mark.parametrize("layout", swept(TWO_RANKS, but=["ep that drops", "fsdp of experts", "tp that drops"]))
def test_two_ranks_train_as_one(two_ranks: Pool, text: str, alone: dict[ExpertsConfig, Outcome], layout: str) -> None:
    parallel, experts = TWO_RANKS[layout]
    outcomes = two_ranks.run(train, config_of(text, parallel, experts))
    assert_equal(outcomes, alone[experts], tolerance=FP32)
    assert_same_weights(outcomes, alone[experts])


USUAL = ("ep x efsdp that drops", "pp 1f1b x ep")


@pytest.mark.parametrize("layout", swept(FOUR_RANKS, but=USUAL))
def test_four_ranks_train_as_one(four_ranks: Pool, text: str, alone: dict[ExpertsConfig, Outcome], layout: str) -> None:
    parallel, experts = FOUR_RANKS[layout]
    outcomes = four_ranks.run(train, config_of(text, parallel, experts))
    assert_equal(outcomes, alone[experts], tolerance=FP32)
    assert_same_weights(outcomes, alone[experts])


@pytest.mark.parametrize(
    "settings",
    [{"accumulation": 2, "recompute": "pointwise"}, pytest.param({"recompute": "full"}, marks=pytest.mark.sweep)],
    ids=str,
)
def test_accumulation_and_recomputation_do_not_change_the_training(
    two_ranks: Pool, text: str, alone: dict[ExpertsConfig, Outcome], settings: dict[str, object]
) -> None:
    parallel, experts = TWO_RANKS["ep that drops"]
    outcomes = two_ranks.run(train, config_of(text, parallel, experts, **settings))
    assert_equal(outcomes, alone[experts], tolerance=FP32)


@pytest.mark.sweep
def test_in_bf16_too(two_ranks: Pool, text: str) -> None:
    """FSDP's experts, gathered and multiplied in bf16, on one rank each or on both."""
    parallel, experts = TWO_RANKS["ep"]
    outcomes = two_ranks.run(train, config_of(text, parallel, experts, precision="bf16"))
    reference = train(config_of(text, ParallelConfig(), experts, precision="bf16"))
    assert_equal(outcomes, reference, tolerance=BF16)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterWeights:
    """Router weights of a rank in a step: their types, and whether bf16 can represent them."""

    dtypes: set[torch.dtype]
    rounded: set[bool]


def weights_of_routers(config: Config) -> RouterWeights:
    trainer = Trainer(config, device=torch.device("cpu"))
    observed = RouterWeights(dtypes=set(), rounded=set())

    def look(router: Router, _: object) -> None:
        observed.dtypes.add(router.weight.dtype)
        observed.rounded.add(torch.equal(router.weight, router.weight.bfloat16().float()))

    for module in trainer.modules[0].modules():
        if isinstance(module, Router):
            module.register_forward_pre_hook(look)
    next(trainer.steps())
    return observed


@pytest.mark.parametrize("layout", ["ep", "fsdp of experts"])
def test_routers_use_whole_fp32_weights_with_experts_in_bf16(two_ranks: Pool, text: str, layout: str) -> None:
    settings: dict[str, object] = {"precision": "bf16", "accumulation": 2, "recompute": "full", "steps": 1}
    for observed in two_ranks.run(weights_of_routers, config_of(text, *TWO_RANKS[layout], **settings)):
        assert observed == RouterWeights(dtypes={torch.float32}, rounded={False})


def loads_of_a_step(config: Config) -> tuple[ExpertLoad, ...]:
    """Load of this rank's experts in the second step."""
    trainer = Trainer(config, device=torch.device("cpu"))
    steps = trainer.steps()
    next(steps)
    trainer.expert_loads()
    next(steps)
    return trainer.expert_loads()


def test_each_rank_reports_the_rows_that_its_experts_got_from_all_ranks(two_ranks: Pool, text: str) -> None:
    """The hot expert 3 gets each of the 16 x 16 tokens, in each layer, once per step. It lies on rank 1."""
    first, second = two_ranks.run(loads_of_a_step, config_of(text, *TWO_RANKS["ep with a hot expert"]))
    assert [(load.layer, list(load.tokens)) for load in first] == [(layer, [0, 1]) for layer in range(4)]
    assert [(load.layer, list(load.tokens)) for load in second] == [(layer, [2, 3]) for layer in range(4)]
    assert [load.tokens[3] for load in second] == [256] * 4
    for first_load, second_load in zip(first, second, strict=True):
        assert sum(first_load.tokens.values()) + sum(second_load.tokens.values()) == 2 * 256
        assert (first_load.padding, first_load.dropped) == (second_load.padding, second_load.dropped) == (0, 0)


def test_choices_and_rows_are_taken_padding_or_dropped(four_ranks: Pool, text: str) -> None:
    """16 sequences x 16 tokens x 2 choices per layer, 8 experts x 16 x 4 rows; stage 0 has layers 0 and 1."""
    config = config_of(text, *FOUR_RANKS["pp 1f1b x ep"])
    ranks = four_ranks.run(loads_of_a_step, replace(config, experts=CAPPED))
    assert [[load.layer for load in rank] for rank in ranks] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    for stage in (ranks[:2], ranks[2:]):
        for layer in zip(*stage, strict=True):
            tokens = sum(sum(load.tokens.values()) for load in layer)
            assert tokens + sum(load.dropped for load in layer) == 16 * 16 * 2
            assert tokens + sum(load.padding for load in layer) == 8 * 16 * 4
            assert 0 < sum(load.dropped for load in layer) < 16 * 16
