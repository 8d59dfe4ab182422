from collections.abc import Iterator

import pytest

from tests.faults.victims.victims import Victims


@pytest.fixture(scope="session")
def victims() -> Iterator[Victims]:
    """A starter of processes that suffer a fault."""
    started = Victims()
    yield started
    started.stop()
