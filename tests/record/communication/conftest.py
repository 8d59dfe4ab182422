"""The recorder by which a test of this folder records."""

import pytest

from tests.native.library import needs_library, use_native
from traincope.native.installed import VARIABLE


@pytest.fixture(params=[False, pytest.param(True, marks=needs_library)], ids=["python", "native"])
def native(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Let the native recorder record in this process, or the Python hooks. Ranks of a pool choose by `use_native`."""
    monkeypatch.setenv(VARIABLE, "")  # it is restored afterwards
    use_native(request.param)
    return bool(request.param)
