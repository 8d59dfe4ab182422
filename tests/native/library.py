"""The condition of tests that need the compiled library."""

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from traincope.native.installed import BUILD, VARIABLE, Use, find_library


@functools.cache
def why_missing() -> str:
    """The reason why these tests skip; empty if they run. `make setup` builds it where a compiler is installed."""
    found = find_library()
    return "" if found.path is not None else found.why


needs_library = pytest.mark.skipif(bool(why_missing()), reason=f"{why_missing()} ({BUILD})")


def use_native(native: bool) -> None:
    """Choose the recorder of the next run of this process."""
    os.environ[VARIABLE] = Use.REQUIRE if native else Use.OFF


@contextmanager
def python_hooks() -> Iterator[None]:
    """Let the Python hooks record in this process: the test is about them."""
    before = os.environ.get(VARIABLE)
    use_native(False)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before
