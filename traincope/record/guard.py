"""The one place where an error of ours is caught: training must never see it."""

import logging
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

failures: dict[str, str] = {}
"""Hook -> its first error, for `rank.json` and the report."""


def guard(hook: Callable[P, R]) -> Callable[P, R | None]:
    """`hook`, but it cannot raise: its first error is logged once and switches it off for good.

    For positional arguments only: collecting named ones would cost every call 0.05 us.
    """
    name = f"{hook.__module__.removeprefix('traincope.record.')}.{hook.__qualname__}"
    alive = True

    def guarded(*args: Any) -> R | None:
        nonlocal alive
        if not alive:
            return None
        try:
            return hook(*args)  # type: ignore[call-arg]
        except Exception as error:
            alive = False
            failures[name] = f"{type(error).__name__}: {error}"
            logger.warning("traincope switched off %s, training goes on: %s", name, failures[name], exc_info=True)
            return None

    return cast("Callable[P, R | None]", guarded)
