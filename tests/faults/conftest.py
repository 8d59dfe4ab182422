from collections.abc import Iterator

import pytest

from tests.faults.trainings import Outcome, train
from tests.faults.victims import Victims


@pytest.fixture(scope="session")
def victims() -> Iterator[Victims]:
    """Starts processes that something bad may happen to."""
    started = Victims()
    yield started
    started.stop()


@pytest.fixture(scope="session")
def bare(victims: Victims) -> Outcome:
    """What the training of `trainings.py` comes to without a recorder."""
    outcome: Outcome = victims.train(train).result
    assert len(outcome) == 4
    return outcome
