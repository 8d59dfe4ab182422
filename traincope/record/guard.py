"""The one place where an error of ours is caught: training must never see it."""

import logging
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

failures: dict[str, str] = {}
"""Hook -> its first error in this run, for `rank.json` and the report."""

_run = 0
"""Counts runs: a hook that failed in one is tried again in the next."""


def begin_run() -> None:
    """Forget the failures of the run before."""
    global _run
    _run += 1
    failures.clear()


def guard(hook: Callable[P, R]) -> Callable[P, R | None]:
    """`hook`, but it cannot raise: its first error is logged once and switches it off for this run.

    For positional arguments only: collecting named ones would cost every call 0.05 us.
    """
    name = f"{hook.__module__.removeprefix('traincope.record.')}.{hook.__qualname__}"
    failed_in = -1

    def guarded(*args: Any) -> R | None:
        nonlocal failed_in
        if failed_in == _run:
            return None
        try:
            return hook(*args)  # type: ignore[call-arg]
        except Exception as error:
            failed_in = _run
            failures[name] = f"{type(error).__name__}: {error}"
            logger.warning("traincope switched off %s, training goes on: %s", name, failures[name], exc_info=True)
            return None

    return cast("Callable[P, R | None]", guarded)
