"""Ray Train with the callback: the same training, recorded on each worker with what that reports."""

from pathlib import Path

import pytest

from tests.integrations.training import PLAIN, RECORDED, Training, faults, logged, settings, step_numbers, train

pytestmark = [pytest.mark.integrations, pytest.mark.timeout(2000)]

STEPS = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ray")


@pytest.fixture(scope="module")
def plain(folder: Path) -> list[str]:
    return losses_of(train(folder / PLAIN, "ray", "ray_workers", PLAIN, own_launcher=True))


@pytest.fixture(scope="module", params=[False, True], ids=["alone", "under traincope run"])
def recorded(folder: Path, request: pytest.FixtureRequest) -> Training:
    place = folder / f"recorded-{request.param}"
    return train(place, "ray", "ray_workers", RECORDED, own_launcher=True, under=request.param)


def losses_of(training: Training) -> list[str]:
    return [(training.folder / f"losses-{rank}").read_text() for rank in (0, 1)]


def test_the_callback_changes_no_bit_of_the_losses(plain: list[str], recorded: Training) -> None:
    assert losses_of(recorded) == plain


def test_each_worker_has_its_steps_its_losses_and_a_clean_end(recorded: Training) -> None:
    assert step_numbers(recorded.timeline) == [[*range(STEPS)]] * 2
    for rank, written in enumerate(losses_of(recorded)):
        losses = [float.fromhex(loss) for loss in written.splitlines()]
        assert logged(recorded.timeline, rank)["loss"] == {step: [loss] for step, loss in enumerate(losses)}
    assert {rank.ending for rank in recorded.timeline.ranks} == {"clean"}
    assert faults(recorded.document) == []
    assert settings(recorded.timeline)["trainer"] == "ray 2.60.0"
