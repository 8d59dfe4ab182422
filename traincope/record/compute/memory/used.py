"""Objects that the training has used, without keeping them alive."""

import weakref
from collections.abc import Iterator
from typing import Any


class Used:
    """A set by identity, of objects that need not be hashable."""

    def __init__(self) -> None:
        self._live: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def add(self, used: Any) -> None:
        if self._live.get(id(used)) is not used:
            self._live[id(used)] = used

    def __iter__(self) -> Iterator[Any]:
        """Yield the live ones."""
        for reference in self._live.valuerefs():
            used = reference()
            if used is not None:
                yield used

    def clear(self) -> None:
        self._live.clear()
