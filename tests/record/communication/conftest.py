"""The recorder by which a test of this folder records."""

from collections.abc import Iterator

import pytest

from tests.native.library import needs_library, using


@pytest.fixture(params=[False, pytest.param(True, marks=needs_library)], ids=["python", "native"])
def native(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Let the native recorder record in this process, or the Python hooks. Ranks of a pool choose by `using`."""
    with using(native=request.param):
        yield bool(request.param)
