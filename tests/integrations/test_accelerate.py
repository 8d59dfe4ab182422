"""A loop with Accelerate and the tracker: the same training, recorded with the values that it logs."""

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

TOKENS = 2 * 4 * 8
"""Ranks, sequences and tokens of a sequence."""
WEIGHTS = 16 * 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("accelerate")


@pytest.fixture(scope="module")
def plain(folder: Path) -> Training:
    return train(folder / PLAIN, "hugging_face", "accelerate_loop", PLAIN)


@pytest.fixture(scope="module", params=[False, True], ids=["alone", "under traincope run"])
def recorded(folder: Path, request: pytest.FixtureRequest) -> Training:
    return train(folder / f"recorded-{request.param}", "hugging_face", "accelerate_loop", RECORDED, under=request.param)


def test_the_tracker_changes_no_bit_of_weights_and_losses(plain: Training, recorded: Training) -> None:
    assert recorded.results == plain.results
    assert len(plain.results[0]["losses"]) == 6


def test_each_update_is_one_step_with_its_values_tokens_and_flops(recorded: Training) -> None:
    assert step_numbers(recorded.timeline) == [[0, 1, 2, 3, 4, 5]] * 2
    losses = [float.fromhex(loss) for loss in recorded.results[0]["losses"]]
    tokens = {step: [32.0] for step in range(6)}
    assert logged(recorded.timeline, 0) == {
        "loss": {step: [loss] for step, loss in enumerate(losses)},
        "step_tokens": tokens,
    }
    assert logged(recorded.timeline, 1) == {"step_tokens": tokens}
    assert tokens_per_step(recorded.document) == pytest.approx(TOKENS)
    assert recorded.document["utilization"]["model_flops_per_step"] == 6 * WEIGHTS * TOKENS
    assert settings(recorded.timeline)["trainer"] == "accelerate 1.15.0"
    assert not faults(recorded.document)
