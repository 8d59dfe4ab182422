"""The condition of tests that need the compiled library."""

import functools
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from traincope.native.cached import BUILD, VARIABLE, Use
from traincope.native.installed import find_library


@functools.cache
def why_missing() -> str:
    """The reason why these tests skip; empty if they run. `make setup` builds it where a compiler is installed."""
    found = find_library()
    return "" if found.path is not None else found.why


needs_library = pytest.mark.skipif(bool(why_missing()), reason=f"{why_missing()} ({BUILD})")


@contextmanager
def using(*, native: bool) -> Iterator[None]:
    """Let the native recorder record in this process, or the Python hooks."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = Use.REQUIRE if native else Use.OFF
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before


def python_hooks() -> AbstractContextManager[None]:
    """Let the Python hooks record in this process: the test is about them."""
    return using(native=False)
