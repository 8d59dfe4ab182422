import pytest

from tests.faults.victims.trainings import Outcome, train
from tests.faults.victims.victims import Victims


@pytest.fixture(scope="session")
def bare(victims: Victims) -> Outcome:
    """The result of the training of `victims/trainings.py` without a recorder."""
    outcome: Outcome = victims.train(train).result
    assert len(outcome) == 4
    return outcome
