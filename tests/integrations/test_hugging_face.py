"""transformers' Trainer with the callback: the same training, recorded with its tokens, FLOPs and values."""

from pathlib import Path

import pytest

from tests.integrations.training import (
    FAILS,
    JOINED,
    PLAIN,
    RECORDED,
    Training,
    faults,
    logged,
    settings,
    step_numbers,
    tokens_per_step,
    train,
)
from traincope.analysis.efficiency.declared_flops import configured_flops

pytestmark = pytest.mark.integrations

TOKENS = 2 * 2 * 2 * 16
"""Ranks, microbatches, sequences and tokens of a sequence."""
WEIGHTS = 2 * (4 * 32 * 32 + 3 * 32 * 64) + 32 * 128
"""Elements of the matrices that a token passes: two blocks and the head."""
ATTENTION = 3 * (4 * 16**2 * 32) // 2 * 2 * (TOKENS // 16)
"""Forward and backward of scores and values: 4 s^2 h per sequence and block, causal attention halved."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hugging-face")


@pytest.fixture(scope="module")
def plain(folder: Path) -> Training:
    return train(folder / PLAIN, "hugging_face", "hugging_face", PLAIN)


@pytest.fixture(scope="module", params=[False, True], ids=["alone", "under traincope run"])
def recorded(folder: Path, request: pytest.FixtureRequest) -> Training:
    return train(folder / f"recorded-{request.param}", "hugging_face", "hugging_face", RECORDED, under=request.param)


def test_the_callback_changes_no_bit_of_weights_and_losses(plain: Training, recorded: Training) -> None:
    assert recorded.results == plain.results
    assert len(plain.results[0]["losses"]) == 6


def test_each_update_is_one_step_in_one_attempt(recorded: Training) -> None:
    assert step_numbers(recorded.timeline) == [[0, 1, 2, 3, 4, 5]] * 2
    assert [attempt["steps"] for attempt in recorded.document["goodput"]["attempts"]] == [6]
    assert not faults(recorded.document)


def test_tokens_and_flops_are_those_counted_by_hand(recorded: Training) -> None:
    for rank in (0, 1):
        assert logged(recorded.timeline, rank)["step_tokens"] == {step: [32.0, 32.0] for step in range(6)}
    assert tokens_per_step(recorded.document) == pytest.approx(TOKENS)
    assert recorded.document["utilization"]["model_flops_per_step"] == 6 * WEIGHTS * TOKENS + ATTENTION


def test_the_configuration_gives_the_counted_flops(recorded: Training) -> None:
    by_formula = configured_flops(recorded.timeline, steps=range(6), experts=None)
    assert by_formula is not None
    assert by_formula.dtype == "float32"
    assert by_formula.model == 6 * WEIGHTS * TOKENS + ATTENTION


def test_the_configuration_gives_the_counted_flops_of_frozen_weights(folder: Path) -> None:
    frozen = train(folder / "frozen", "hugging_face", "hugging_face", "frozen")
    by_formula = configured_flops(frozen.timeline, steps=range(6), experts=None)
    assert by_formula is not None
    counted = frozen.document["utilization"]["model_flops_per_step"]
    assert by_formula.model == counted
    assert counted < 0.8 * (6 * WEIGHTS * TOKENS + ATTENTION)


def test_packed_documents_log_tokens_and_no_squared_lengths(folder: Path, recorded: Training) -> None:
    """With positions that begin again, a row of 16 tokens is two documents, whose lengths the callback cannot know."""
    assert logged(recorded.timeline, 0)["step_formula_squared_lengths"][0] == [32.0 * 16] * 2
    packed = train(folder / "packed", "hugging_face", "hugging_face", "packed")
    assert logged(packed.timeline, 0)["step_tokens"] == {step: [32.0, 32.0] for step in range(6)}
    assert "step_formula_squared_lengths" not in logged(packed.timeline, 0)
    assert configured_flops(packed.timeline, steps=range(6), experts=None) is None


def test_the_logged_values_have_their_step_and_the_run_has_its_names(recorded: Training) -> None:
    losses = [float.fromhex(loss) for loss in recorded.results[0]["losses"]]
    values = logged(recorded.timeline, 0)
    assert values["loss"] == {step: [loss] for step, loss in enumerate(losses)}
    assert {"grad_norm", "learning_rate", "epoch"} <= set(values)
    assert "train_loss" not in values
    assert settings(recorded.timeline)["model"] == "LlamaForCausalLM"
    assert settings(recorded.timeline)["trainer"] == "transformers 5.24.0"


def test_the_callback_joins_a_run_of_the_script(folder: Path, plain: Training) -> None:
    joined = train(folder / JOINED, "hugging_face", "hugging_face", JOINED)
    assert joined.results == plain.results
    assert step_numbers(joined.timeline) == [[0, 1, 2, 3, 4, 5]] * 2
    assert settings(joined.timeline)["peak_flops"] == 1e9


def test_an_exception_ends_the_callbacks_run_with_its_name(folder: Path) -> None:
    failed = train(folder / FAILS, "hugging_face", "hugging_face", FAILS)
    rank = failed.timeline.ranks[0]
    assert (rank.ending, [step.number for step in rank.steps], rank.open_step) == ("ValueError", [0, 1], 2)
