"""FLOPs of matrix products whose shapes the profiler recorded (`record_shapes=True`): 2 x rows x inner x columns."""

import json
from typing import NamedTuple

from traincope.ingest.events import ABSENT, Arguments

FACTORS = {
    "aten::mm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::bmm": (0, 1),
    "aten::baddbmm": (1, 2),
    "aten::_scaled_mm": (0, 1),
}
"""Operator that launches its own kernels -> which of its inputs are the factors."""
DTYPES = {
    "float": "float32",
    "double": "float64",
    "c10::BFloat16": "bfloat16",
    "c10::Half": "float16",
    "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e5m2": "float8_e5m2",
}
"""Kineto's names of dtypes -> torch's."""


class Product(NamedTuple):
    flops: float
    dtype: str


def product(name: str, arguments: Arguments) -> Product | None:
    """FLOPs and dtype of an operator; None if it is not a product, or its shapes were not recorded."""
    at = FACTORS.get(name)
    if at is None or arguments.dims is ABSENT or arguments.types is ABSENT:
        return None
    try:
        left, right = (list(map(int, json.loads(bytes(arguments.dims))[factor])) for factor in at)
        dtype = DTYPES.get(json.loads(bytes(arguments.types))[at[0]])
    except (ValueError, LookupError, TypeError):
        return None
    flops = _flops(left, right)
    return None if flops is None or dtype is None else Product(flops=flops, dtype=dtype)


def _flops(left: list[int], right: list[int]) -> float | None:
    """FLOPs of [..., m, k] x [..., k, n] with at most one batch dimension."""
    if len(left) not in (2, 3) or len(left) != len(right) or left[-1] != right[-2] or left[:-2] != right[:-2]:
        return None
    batch = left[0] if len(left) == 3 else 1
    return 2.0 * batch * left[-2] * left[-1] * right[-1]
