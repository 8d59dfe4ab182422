"""Random trainings give the same numbers bare, with the native recorder and with the Python hooks, bit by bit."""

from pathlib import Path

import pytest
import torch

from tests.distributed.ranks.pool import Pool
from tests.native.library import needs_library
from tests.native.random_trainings import BARE, Numbers, Training, compared, differences
from tests.seeds import seeds


@needs_library
@pytest.mark.fuzz
def test_random_trainings_give_the_same_numbers_bare_and_recorded(two_ranks: Pool, tmp_path: Path) -> None:
    found = [line for seed in seeds(6) for line in differences(two_ranks, seed, str(tmp_path / str(seed)))]
    assert found == []


def with_one_number_more(seed: int) -> tuple[Numbers, Numbers]:
    """The same training twice. The second time, its model's hook draws a random number."""
    bare, model = Training(seed).run(), Training._model

    def drawing(training: Training) -> torch.nn.Sequential:
        made = model(training)
        torch.rand(1)
        return made

    Training._model = drawing  # type: ignore[method-assign]
    try:
        return bare, Training(seed).run()
    finally:
        Training._model = model  # type: ignore[method-assign]


def test_one_random_number_more_is_a_difference(two_ranks: Pool) -> None:
    for bare, other in two_ranks.run(with_one_number_more, 3):
        assert bare.losses
        assert bare != other


def test_ranks_have_numbers_of_their_own_and_one_end(two_ranks: Pool, tmp_path: Path) -> None:
    first, second = (each[BARE] for each in two_ranks.run(compared, 1, str(tmp_path)))
    assert first.losses != second.losses
    assert first.ended_by == second.ended_by
