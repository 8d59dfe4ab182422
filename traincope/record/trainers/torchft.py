"""torchft: quorums and commits of its Manager, which joins replica groups that are jobs of their own."""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from traincope.events import SKIPPED_STEP
from traincope.record.instrumentation.guard import guard
from traincope.record.instrumentation.patching import Patches

MODULE = "torchft.manager"
CLASS = "Manager"
QUORUM, COMMIT = "quorum", "commit"
"""Parts of a step: the wait until the replica groups of the step are known, and the vote on its update."""


def patch(module: ModuleType, patches: Patches, begin: Callable[..., Any], event: Callable[..., None]) -> None:
    """Make the waits parts of the step. A new quorum, a group that catches up and a discarded update are events."""
    manager = getattr(module, CLASS)
    wait_quorum, should_commit = manager.wait_quorum, manager.should_commit
    known: dict[int, int] = {}
    """Manager -> number of its quorum."""

    @guard
    def joined(self: Any) -> None:
        number = int(self._quorum_id)
        if known.get(id(self)) != number:
            known[id(self)] = number
            healing = {"healing": True} if self._healing else {}
            event("quorum", {"quorum": number, "replicas": int(self._participating_replica_world_size), **healing})

    @guard
    def voted(self: Any, commits: Any) -> None:
        if not commits:
            error = getattr(self._errored, "original_exception", None)
            why = "an error of another rank, or too few replica groups" if error is None else type(error).__name__
            event(SKIPPED_STEP, {"why": f"torchft discards the update: {why}"})

    @functools.wraps(wait_quorum)
    def waits(self: Any, *args: Any, **kwargs: Any) -> Any:
        part = begin(QUORUM, nested=False)
        try:
            result = wait_quorum(self, *args, **kwargs)
        finally:
            if part is not None:
                part.end()
        joined(self)
        return result

    @functools.wraps(should_commit)
    def commits(self: Any, *args: Any, **kwargs: Any) -> Any:
        part = begin(COMMIT, nested=False)
        try:
            result = should_commit(self, *args, **kwargs)
        finally:
            if part is not None:
                part.end()
        voted(self, result)
        return result

    patches.replace(manager, "wait_quorum", waits)
    patches.replace(manager, "should_commit", commits)
