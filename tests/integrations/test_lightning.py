"""Lightning's Trainer with the callback: the same training, recorded with its tokens, FLOPs and values."""

from pathlib import Path

import pytest

from tests.integrations.training import (
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

pytestmark = pytest.mark.integrations

TOKENS = 2 * 2 * 4 * 8
"""Ranks, microbatches, sequences and tokens of a sequence."""
WEIGHTS = 16 * 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lightning")


@pytest.fixture(scope="module")
def plain(folder: Path) -> Training:
    return train(folder / PLAIN, "lightning", "lightning_fit", PLAIN)


@pytest.fixture(scope="module", params=[False, True], ids=["alone", "under traincope run"])
def recorded(folder: Path, request: pytest.FixtureRequest) -> Training:
    return train(folder / f"recorded-{request.param}", "lightning", "lightning_fit", RECORDED, under=request.param)


def test_the_callback_changes_no_bit_of_weights_and_losses(plain: Training, recorded: Training) -> None:
    assert recorded.results == plain.results
    assert len(plain.results[0]["losses"]) == 12


def test_each_update_is_one_step_in_one_attempt(recorded: Training) -> None:
    assert step_numbers(recorded.timeline) == [[0, 1, 2, 3, 4, 5]] * 2
    assert [attempt["steps"] for attempt in recorded.document["goodput"]["attempts"]] == [6]
    assert not faults(recorded.document)


def test_tokens_and_flops_are_those_counted_by_hand(recorded: Training) -> None:
    for rank in (0, 1):
        assert logged(recorded.timeline, rank)["step_tokens"] == {step: [32.0, 32.0] for step in range(6)}
    assert tokens_per_step(recorded.document) == pytest.approx(TOKENS)
    assert recorded.document["utilization"]["model_flops_per_step"] == 6 * WEIGHTS * TOKENS


def test_the_logged_values_have_their_step_and_the_run_has_its_names(recorded: Training) -> None:
    for rank in (0, 1):
        losses = [float.fromhex(loss) for loss in recorded.results[rank]["losses"]]
        pairs = {step: losses[2 * step : 2 * step + 2] for step in range(6)}
        values = logged(recorded.timeline, rank)
        assert values["loss"] == values["train_loss"] == pairs
        assert {step: len(held_out) for step, held_out in values["held_out"].items()} == {2: 1, 4: 1}
    assert settings(recorded.timeline)["model"] == "Model"
    assert settings(recorded.timeline)["trainer"] == "lightning 2.6.6"
