"""Training on packed documents is the same in each layout: each rank keeps attention within documents."""

from dataclasses import replace

import pytest

from tests.distributed.equality.test_equality import FP32, assert_equal, assert_same_weights, differences
from tests.distributed.equality.test_gradients import Gradients, assert_same, gradients
from tests.distributed.layouts import Outcome, small_config, train
from tests.distributed.ranks.pool import Pool
from tests.distributed.selection import swept
from traincope.engine.config import Config, DataConfig, ExpertsConfig, ParallelConfig

EXPERTS = ExpertsConfig(number=4, top_k=2, ffn=24)
Layout = tuple[ParallelConfig, dict[str, object]]
TWO_RANKS: dict[str, Layout] = {
    "ddp": (ParallelConfig(dp=2), {"accumulation": 2}),
    "fsdp": (ParallelConfig(fsdp=2), {"recompute": "full"}),
    "tp": (ParallelConfig(tp=2), {"recompute": "selective"}),
    "pp 1f1b": (ParallelConfig(pp=2, microbatches=4), {"recompute": "selective"}),
}
FOUR_RANKS: dict[str, Layout] = {
    "fsdp x tp that repeats the norms": (ParallelConfig(fsdp=2, tp=2, sequence_parallel=False), {}),
    "pp zb-v x fsdp": (ParallelConfig(pp=2, fsdp=2, schedule="zb-v", microbatches=4), {}),
}


def packed(text: str, parallel: ParallelConfig, *, experts: ExpertsConfig | None = None, **train: object) -> Config:
    """The words of a text as documents of up to eleven characters. A sequence has sixteen."""
    data = DataConfig(path=text, held_out=0.2, end_of_document=ord(" "))
    return replace(small_config(text, ParallelConfig(), **train), parallel=parallel, data=data, experts=experts)


@pytest.fixture(scope="module")
def alone(text: str) -> Outcome:
    return train(packed(text, ParallelConfig()))


@pytest.fixture(scope="module")
def gradients_alone(text: str) -> Gradients:
    return gradients(packed(text, ParallelConfig()))


@pytest.mark.parametrize("layout", swept(TWO_RANKS, but=["fsdp"]))
def test_two_ranks_train_as_one(two_ranks: Pool, text: str, alone: Outcome, layout: str) -> None:
    parallel, settings = TWO_RANKS[layout]
    outcomes = two_ranks.run(train, packed(text, parallel, **settings))
    assert_equal(outcomes, alone, tolerance=FP32)
    assert_same_weights(outcomes, alone)


@pytest.mark.parametrize("layout", swept(FOUR_RANKS, but=["pp zb-v x fsdp"]))
def test_four_ranks_train_as_one(four_ranks: Pool, text: str, alone: Outcome, layout: str) -> None:
    parallel, settings = FOUR_RANKS[layout]
    outcomes = four_ranks.run(train, packed(text, parallel, **settings))
    assert_equal(outcomes, alone, tolerance=FP32)
    assert_same_weights(outcomes, alone)


@pytest.mark.parametrize("layout", TWO_RANKS)
def test_gradients_equal_those_of_one_process_number_by_number(
    two_ranks: Pool, text: str, gradients_alone: Gradients, layout: str
) -> None:
    parallel, settings = TWO_RANKS[layout]
    assert_same(two_ranks.run(gradients, packed(text, parallel, **settings)), gradients_alone)


def test_spread_experts_train_as_one_process(two_ranks: Pool, text: str) -> None:
    reference = train(packed(text, ParallelConfig(), experts=EXPERTS))
    outcomes = two_ranks.run(train, packed(text, ParallelConfig(fsdp=2, ep=2), experts=EXPERTS))
    assert_equal(outcomes, reference, tolerance=FP32)


def test_training_without_documents_differs(text: str, alone: Outcome) -> None:
    whole = train(small_config(text, ParallelConfig()))
    assert differences([whole], alone)["loss"] > 100 * FP32
