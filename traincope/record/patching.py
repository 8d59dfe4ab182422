"""Replacing attributes of torch, and putting back exactly what was there."""

import sys
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from traincope.record.torch_private import hide_from_compiler

_ABSENT = object()


@dataclass(slots=True)
class _Patch:
    owner: Any
    name: str
    original: Any
    """What stood in the owner's own `__dict__`, or _ABSENT where it was inherited."""
    ours: Any


class Patches:
    """The attributes one hook replaced, in order."""

    def __init__(self) -> None:
        self._patches: list[_Patch] = []

    def __bool__(self) -> bool:
        """Whether anything is replaced."""
        return bool(self._patches)

    def replace(self, owner: Any, name: str, ours: Any) -> None:
        original = vars(owner).get(name, _ABSENT)
        if sys.modules.get("torch") is not None:  # without torch nothing compiles
            hide_from_compiler(ours, calls_too=False)
        if isinstance(owner, ModuleType) and isinstance(ours, FunctionType):
            _call_it(ours, module=owner.__name__, name=name)
        setattr(owner, name, ours)
        self._patches.append(_Patch(owner, name, original, ours))

    def restore(self) -> None:
        """Undo, last first. An attribute somebody replaced after us stays theirs.

        Theirs calls ours in turn, and ours, once the recorder is closed, only passes through.
        """
        while self._patches:
            patch = self._patches.pop()
            if vars(patch.owner).get(patch.name) is not patch.ours:
                continue
            if patch.original is _ABSENT:
                delattr(patch.owner, patch.name)
            else:
                setattr(patch.owner, patch.name, patch.original)


def _call_it(ours: FunctionType, *, module: str, name: str) -> None:
    """Pickle finds a function by where it says it lies: a pool that is told to call it finds what is there then."""
    ours.__module__, ours.__qualname__ = module, name
