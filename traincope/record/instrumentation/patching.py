"""Replacement of torch's attributes, and exact restoration."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from traincope.record.instrumentation.torch_private import hide_from_compiler

_ABSENT = object()


@dataclass(slots=True)
class _Patch:
    owner: Any
    name: str
    original: Any
    """The attribute in the owner's own `__dict__`, or _ABSENT if it was inherited."""
    replacement: Any


class Patches:
    """The attributes that one hook replaced, in order."""

    def __init__(self) -> None:
        self._patches: list[_Patch] = []

    def __bool__(self) -> bool:
        """Return whether anything is replaced."""
        return bool(self._patches)

    def replace(self, owner: Any, name: str, replacement: Any) -> None:
        original = vars(owner).get(name, _ABSENT)
        if sys.modules.get("torch") is not None:  # without torch nothing compiles
            hide_from_compiler(replacement, calls_too=False)
        if isinstance(owner, ModuleType) and isinstance(replacement, FunctionType):
            _rename(replacement, module=owner.__name__, name=name)
        if isinstance(original, FunctionType) and isinstance(replacement, FunctionType):
            _share_defaults(replacement, original)
        setattr(owner, name, replacement)
        self._patches.append(_Patch(owner, name, original, replacement))

    @contextmanager
    def set_aside(self, owner: Any, name: str) -> Iterator[None]:
        """Let the attribute be as it was before us, unless it was replaced again after us."""
        patch = next((patch for patch in self._patches if (patch.owner, patch.name) == (owner, name)), None)
        if patch is None or vars(owner).get(name) is not patch.replacement:
            yield
            return
        setattr(owner, name, patch.original)
        try:
            yield
        finally:
            if patch in self._patches and vars(owner).get(name) is patch.original:
                setattr(owner, name, patch.replacement)

    def restore(self) -> None:
        """Restore all attributes, last first. An attribute that was replaced again after us stays.

        That replacement calls ours in turn. Once the recorder is closed, ours only passes through.
        """
        while self._patches:
            patch = self._patches.pop()
            if vars(patch.owner).get(patch.name) is not patch.replacement:
                continue
            if patch.original is _ABSENT:
                delattr(patch.owner, patch.name)
            else:
                setattr(patch.owner, patch.name, patch.original)


def _rename(replacement: FunctionType, *, module: str, name: str) -> None:
    """Give the function the name of the original.

    Pickle finds a function by its module and name. A process pool that unpickles it then finds the current function
    there.
    """
    replacement.__module__, replacement.__qualname__ = module, name


def _share_defaults(replacement: FunctionType, original: FunctionType) -> None:
    """Show the original's defaults. A training may change one, e.g. `torch.load.__kwdefaults__["weights_only"]`.

    Python never uses them here: the replacement takes any arguments. With a parameter of its own, defaults beyond its
    number would be read from elsewhere.
    """
    replacement.__kwdefaults__ = original.__kwdefaults__
    if not replacement.__code__.co_argcount:
        replacement.__defaults__ = original.__defaults__
