"""Arguments of an operator as the profiler records them with `record_shapes=True`."""

import json
from math import prod
from typing import Any

from traincope.ingest.traces.events import Arguments

SIZES = {
    "double": 8,
    "float": 4,
    "c10::BFloat16": 2,
    "c10::Half": 2,
    "c10::Float8_e4m3fn": 1,
    "c10::Float8_e5m2": 1,
    "long": 8,
    "long int": 8,
    "int": 4,
    "short": 2,
    "short int": 2,
    "signed char": 1,
    "unsigned char": 1,
    "bool": 1,
}
"""Kineto's names of dtypes -> bytes of an element."""
FLOATING = frozenset(("double", "float", "c10::BFloat16", "c10::Half"))

Recorded = tuple[bytes, bytes, bytes, bytes]
"""Dims, types, strides and values of the arguments, as written; empty if absent."""


def recorded(arguments: Arguments) -> Recorded:
    """The recorded arguments, which can be compared and hashed: a training calls an operator again and again."""
    return bytes(arguments.dims), bytes(arguments.types), bytes(arguments.strides), bytes(arguments.values)


class Call:
    """Shapes, dtypes, and values of other arguments as Python prints them, by their positions."""

    def __init__(self, call: Recorded) -> None:
        """Raises ValueError for what is not JSON."""
        dims, types, strides, values = call
        self._dims, self.types = json.loads(dims), json.loads(types)
        self._strides = json.loads(strides) if strides else None
        self._values = json.loads(values) if values else []

    def __len__(self) -> int:
        return len(self.types)

    def shape(self, at: int, *, num_dims: int | None = None) -> list[int]:
        """Raises ValueError for another number of dims, LookupError or TypeError without a shape."""
        shape = list(map(int, self._dims[at]))
        if num_dims is not None and len(shape) != num_dims:
            raise ValueError(f"argument {at} has {len(shape)} dims, not {num_dims}")
        return shape

    def value(self, at: int) -> Any:
        """A flag, a number or a list of these. Raises ValueError or LookupError without it."""
        return json.loads(self._values[at].lower())

    def size(self, at: int) -> int:
        """Bytes of an element of a tensor. Raises LookupError for another argument."""
        return SIZES[self.types[at]]

    def num_bytes(self, at: int) -> int:
        """Bytes of a tensor's distinct elements: an expanded dim, of stride 0, repeats one. 0 for an absent tensor.

        Raises LookupError, TypeError or ValueError for another argument, or if strides were not recorded.
        """
        if self.types[at] == "":
            return 0
        if self._strides is None:
            raise ValueError("no strides")
        dims = zip(self.shape(at), self._strides[at], strict=True)
        return prod(length for length, stride in dims if stride != 0) * self.size(at)
