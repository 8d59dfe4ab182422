"""Objects that the training has used, without keeping them alive."""

import weakref
from collections.abc import Iterator
from typing import Any


class Used:
    """A set by identity, of objects that need not be hashable."""

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[Any]] = {}

    def add(self, used: Any) -> None:
        known = self._references.get(id(used))
        if known is None or known() is not used:
            self._references[id(used)] = weakref.ref(used)

    def __iter__(self) -> Iterator[Any]:
        """Yield the live ones, and forget the others."""
        for number, reference in tuple(self._references.items()):
            used = reference()
            if used is None:
                self._references.pop(number, None)
            else:
                yield used

    def clear(self) -> None:
        self._references.clear()
