"""Kernels that come and go with windows: which of them another library hides."""

import warnings
from collections.abc import Iterator

import pytest
from torch.library import Library

from traincope.record.instrumentation.dispatcher import KEY, Interposed
from traincope.record.instrumentation.threads import OtherThreads

OPERATOR = "c10d::allreduce_"


@pytest.fixture
def ours() -> Iterator[Interposed]:
    interposed = Interposed("c10d")
    interposed.put("allreduce_", lambda proceed, below: lambda keys, *args: proceed(keys & below, *args))
    yield interposed
    interposed.remove()


def test_a_kernel_of_another_library_hides_ours(ours: Interposed) -> None:
    library = Library("c10d", "IMPL")
    with warnings.catch_warnings(action="ignore"):  # torch warns of every kernel that replaces another
        library.impl("allreduce_", lambda *_: None, KEY, allow_override=True)
    assert ours.hidden([OPERATOR]) == (OPERATOR,)
    library._destroy()


def test_withdrawn_kernels_are_not_hidden(ours: Interposed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of operators may be older than the end of a window. Threads of earlier tests would keep the kernels."""
    monkeypatch.setattr(OtherThreads, "may_be_in_a_collective", lambda _: False)
    listed = ours.operators
    assert listed == [OPERATOR]
    ours.withdraw()
    assert (ours.operators, ours.hidden(listed)) == ([], ())
    assert ours.put_back()
    assert ours.hidden(listed) == ()
