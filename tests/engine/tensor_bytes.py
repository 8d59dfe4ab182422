"""Bytes of tensors alive at the same time, counted at each operator. Mapped files count as zero."""

import weakref
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.engine.sharing.test_mapped import file_of


class TensorBytes(TorchDispatchMode):
    """`peak` is the largest sum of bytes of all tensors that operators take or create in this context."""

    def __init__(self, *, older: Iterable[Tensor] = ()) -> None:
        """`older` tensors are not counted."""
        super().__init__()
        self.peak = 0
        self._registered: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._counted: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        for tensor in older:
            self._register(tensor.untyped_storage(), counts=False)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """An operator on DTensors arrives again with their local parts."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        for tensor in _in_memory((args, kwargs)):
            if id(tensor.untyped_storage()) not in self._registered:
                self._register(tensor.untyped_storage(), counts=file_of(tensor) == "")
        result = func(*args, **(kwargs or {}))
        for tensor in _in_memory(result):
            if id(tensor.untyped_storage()) not in self._registered:
                self._register(tensor.untyped_storage(), counts=True)
        self.peak = max(self.peak, self._current_bytes())
        return result

    def restart(self) -> int:
        """Return the peak so far and restart it with the tensors that are alive."""
        peak, self.peak = self.peak, self._current_bytes()
        return peak

    def _current_bytes(self) -> int:
        """Current bytes of each tensor: FSDP empties what it gathered and fills it again."""
        counted = list(self._counted.values())  # gloo's threads may free a storage at any line
        storages = [reference() for reference in counted]
        return sum(storage.nbytes() for storage in storages if storage is not None)

    def _register(self, storage: torch.UntypedStorage, *, counts: bool) -> None:
        """torch gives a tensor the same Python object as long as it lives."""
        number = id(storage)
        self._registered[number] = weakref.ref(storage, lambda _: self._unregister(number))
        if counts:
            self._counted[number] = self._registered[number]

    def _unregister(self, number: int) -> None:
        del self._registered[number]
        self._counted.pop(number, None)


def _in_memory(tree: Any) -> list[Tensor]:
    leaves = [cast(Tensor, leaf) for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
    return [leaf for leaf in leaves if leaf.device.type != "meta"]
