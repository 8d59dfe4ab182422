"""torchtitan's Trainer with the metrics processor: the same training, recorded with its tokens and what it logs."""

from pathlib import Path

import pytest

from tests.integrations.training import (
    PLAIN,
    RECORDED,
    Training,
    logged,
    settings,
    step_numbers,
    tokens_per_step,
    train,
)

pytestmark = pytest.mark.integrations

STEPS, TOKENS = 12, 2 * 4 * 16
"""Ranks, sequences and tokens of a sequence."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("torchtitan")


@pytest.fixture(scope="module")
def plain(folder: Path) -> Training:
    return train(folder / PLAIN, "torchtitan", "torchtitan_fsdp", PLAIN)


@pytest.fixture(scope="module")
def recorded(folder: Path) -> Training:
    return train(folder / RECORDED, "torchtitan", "torchtitan_fsdp", RECORDED)


def test_the_processor_changes_no_bit_of_weights_and_losses(plain: Training, recorded: Training) -> None:
    assert recorded.results == plain.results
    assert len(plain.results[0]["losses"]) == STEPS


def test_each_step_has_its_tokens_and_what_torchtitan_logs(recorded: Training) -> None:
    assert step_numbers(recorded.timeline) == [[*range(STEPS)]] * 2
    values = logged(recorded.timeline, 0)
    losses = [float.fromhex(loss) for loss in recorded.results[0]["losses"]]
    assert values["loss"] == {step: [loss] for step, loss in enumerate(losses)}
    assert values["n_tokens_seen"] == {step: [(step + 1) * TOKENS] for step in range(STEPS)}
    assert values.keys() >= {"largest_loss", "grad_norm", "lr"}
    assert tokens_per_step(recorded.document) == pytest.approx(TOKENS)
    assert settings(recorded.timeline)["trainer"] == "torchtitan 0.2.2"
