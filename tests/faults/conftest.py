from collections.abc import Iterator

import pytest

from tests.faults.victims.trainings import Outcome, train
from tests.faults.victims.victims import Victims


@pytest.fixture(scope="session")
def victims() -> Iterator[Victims]:
    """A starter of processes that suffer a fault."""
    started = Victims()
    yield started
    started.stop()


@pytest.fixture(scope="session")
def bare(victims: Victims) -> Outcome:
    """The result of the training of `victims/trainings.py` without a recorder."""
    outcome: Outcome = victims.train(train).result
    assert len(outcome) == 4
    return outcome
