"""DeepSpeed's engine with the monitor: the same training, recorded with the events of DeepSpeed's monitor."""

from pathlib import Path

import pytest

from tests.integrations.training import PLAIN, RECORDED, Training, logged, settings, step_numbers, train

pytestmark = pytest.mark.integrations

TOKENS = 2 * 4 * 8
"""Ranks, sequences and tokens of a sequence."""
WEIGHTS = 16 * 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("deepspeed")


@pytest.fixture(scope="module")
def plain(folder: Path) -> Training:
    return train(folder / PLAIN, "deepspeed", "deepspeed_engine", PLAIN)


@pytest.fixture(scope="module", params=[False, True], ids=["alone", "under traincope run"])
def recorded(folder: Path, request: pytest.FixtureRequest) -> Training:
    return train(folder / f"recorded-{request.param}", "deepspeed", "deepspeed_engine", RECORDED, under=request.param)


def test_the_monitor_changes_no_bit_of_weights_and_losses(plain: Training, recorded: Training) -> None:
    assert recorded.results == plain.results
    assert len(plain.results[0]["losses"]) == 6


def test_each_update_is_one_step_with_its_flops_and_the_values_of_rank_0(recorded: Training) -> None:
    assert step_numbers(recorded.timeline) == [[0, 1, 2, 3, 4, 5]] * 2
    assert logged(recorded.timeline, 0) == {"Train/Samples/lr": {step: [0.01] for step in range(6)}}
    assert logged(recorded.timeline, 1) == {}
    assert recorded.document["utilization"]["model_flops_per_step"] == 6 * WEIGHTS * TOKENS
    assert settings(recorded.timeline)["model"] == "Sequential"


def test_the_monitor_of_the_settings_still_receives_each_event(plain: Training, recorded: Training) -> None:
    written, expected = (
        {path.name: path.read_text() for path in (training.folder / "csv").glob("*.csv")}
        for training in (recorded, plain)
    )
    assert written == expected
    assert list(written) == ["Train_Samples_lr.csv"]
