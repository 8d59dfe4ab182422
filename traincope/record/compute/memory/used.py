"""Objects that the training has used, without keeping them alive."""

import weakref
from collections.abc import Iterator
from typing import Any

MIN_PRUNED = 64
"""Number of objects from which those that are gone are forgotten."""


class Used:
    """A set by identity, of objects that need not be hashable, each with a value.

    Nothing is called when an object goes: Python would drop what a signal handler of the training raises in it.
    """

    def __init__(self) -> None:
        self._live: dict[int, tuple[weakref.ref[Any], Any]] = {}
        self._prune_at = MIN_PRUNED

    def add(self, used: Any, value: Any = True) -> None:
        entry = self._live.get(id(used))
        if entry is None or entry[0]() is not used:
            if len(self._live) >= self._prune_at:
                self._live = {number: entry for number, entry in self._live.copy().items() if entry[0]() is not None}
                self._prune_at = max(2 * len(self._live), MIN_PRUNED)
            self._live[id(used)] = weakref.ref(used), value

    def get(self, used: Any) -> Any:
        """Return the object's value; None if it was not added."""
        reference, value = self._live.get(id(used), (None, None))
        return value if reference is not None and reference() is used else None

    def __iter__(self) -> Iterator[Any]:
        """Yield the live ones."""
        for reference, _ in tuple(self._live.values()):
            used = reference()
            if used is not None:
                yield used

    def clear(self) -> None:
        self._live.clear()
