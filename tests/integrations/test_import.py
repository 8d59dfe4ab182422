"""Import of a callback whose framework is missing, or has another shape than the tested versions."""

import sys
from types import ModuleType

import pytest


def test_a_framework_that_lacks_what_a_callback_needs_is_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    another = ModuleType("accelerate")
    another.__version__ = "99.0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "accelerate", another)
    with pytest.raises(ImportError, match=r"AccelerateTracker does not fit the packages .*'accelerate.tracking'.* run"):
        from traincope.integrations import AccelerateTracker  # noqa: F401
    with pytest.raises(ImportError, match=r"RayTrainCallback .*: No module named 'ray'\. `traincope run -- COMMAND`"):
        from traincope.integrations import RayTrainCallback  # noqa: F401
