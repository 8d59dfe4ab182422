"""Bytes of tensors that live at once, counted where all operators pass; files that are mapped cost none."""

import weakref
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.engine.test_mapped import file_of


class TensorBytes(TorchDispatchMode):
    """`peak`: most bytes at once of the memory of all tensors that operators take or make within it."""

    def __init__(self, *, older: Iterable[Tensor] = ()) -> None:
        """Those of `older` are not counted."""
        super().__init__()
        self.peak = 0
        self._met: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._counted: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        for tensor in older:
            self._meet(tensor.untyped_storage(), counts=False)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """An operator on DTensors comes again, on their local parts."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        for tensor in _in_memory((args, kwargs)):
            if id(tensor.untyped_storage()) not in self._met:
                self._meet(tensor.untyped_storage(), counts=file_of(tensor) == "")
        result = func(*args, **(kwargs or {}))
        for tensor in _in_memory(result):
            if id(tensor.untyped_storage()) not in self._met:
                self._meet(tensor.untyped_storage(), counts=True)
        self.peak = max(self.peak, self._living())
        return result

    def start_over(self) -> int:
        """The peak until now; from now on it is that of what comes, beginning with what lives."""
        peak, self.peak = self.peak, self._living()
        return peak

    def _living(self) -> int:
        """Of each what it has now: FSDP empties what it gathered, and fills it again."""
        storages = [reference() for reference in self._counted.values()]
        return sum(storage.nbytes() for storage in storages if storage is not None)

    def _meet(self, storage: torch.UntypedStorage, *, counts: bool) -> None:
        """As long as it lives torch gives it the same object in Python."""
        number = id(storage)
        self._met[number] = weakref.ref(storage, lambda _: self._forget(number))
        if counts:
            self._counted[number] = self._met[number]

    def _forget(self, number: int) -> None:
        del self._met[number]
        self._counted.pop(number, None)


def _in_memory(tree: Any) -> list[Tensor]:
    leaves = [cast(Tensor, leaf) for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
    return [leaf for leaf in leaves if leaf.device.type != "meta"]
