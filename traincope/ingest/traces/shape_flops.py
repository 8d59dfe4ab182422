"""FLOPs of operators whose shapes the profiler recorded (`record_shapes=True`): products, convolutions and attention.

The formulas are those of the recorder (`record.compute.flop_formulas`). An operator without recorded shapes, or with
shapes that leave its FLOPs open, has none.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from math import prod
from types import MappingProxyType
from typing import NamedTuple

from traincope.events import Work
from traincope.ingest.traces.recorded_call import Call, Recorded

DTYPES = {
    "float": "float32",
    "double": "float64",
    "c10::BFloat16": "bfloat16",
    "c10::Half": "float16",
    "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e5m2": "float8_e5m2",
}
"""Kineto's names of dtypes -> torch's."""


class Count(NamedTuple):
    flops: float
    """Causal attention counts in full."""
    dtype: str
    work: Work


Formula = Callable[[Call], tuple[float, Work]]


def _product(left_at: int) -> tuple[int, Formula]:
    """[..., m, k] x [..., k, n] with at most one batch dim. The second factor follows the first."""

    def count(call: Call) -> tuple[float, Work]:
        left, right = call.shape(left_at), call.shape(left_at + 1)
        if len(left) not in (2, 3) or len(left) != len(right) or left[-1] != right[-2] or left[:-2] != right[:-2]:
            raise ValueError(f"{left} and {right} are not factors")
        return 2.0 * prod(left) * right[-1], Work.MATMUL

    return left_at, count


def _convolution(call: Call) -> tuple[float, Work]:
    """(N, C, ...) with filters (C', C / groups, ...): every position of the output meets the whole filter once."""
    data, weight = call.shape(0), call.shape(1)
    return _convolved(data, weight, data[2:] if call.value(6) else convolved_positions(call)), Work.MATMUL


def convolved_positions(call: Call) -> list[int]:
    """Positions of the output of a convolution that is not transposed, in each dim. Raises as `Call` does."""
    data, weight = call.shape(0), call.shape(1)
    stride, padding, dilation = (call.value(at) for at in (3, 4, 5))
    return [
        int((length + 2 * pad - spacing * (width - 1) - 1) // step + 1)
        for length, width, step, pad, spacing in zip(data[2:], weight[2:], stride, padding, dilation, strict=True)
    ]


def _convolution_backward(call: Call) -> tuple[float, Work]:
    """As much as forward for each requested gradient of input and weight."""
    out, data, weight = call.shape(0), call.shape(1), call.shape(2)
    once = _convolved(data, weight, data[2:] if call.value(7) else out[2:])
    return once * sum(call.value(10)[:2]), Work.MATMUL


def _convolved(data: list[int], weight: list[int], positions: list[int]) -> float:
    return 2.0 * data[0] * prod(positions) * prod(weight)


def _attention(causal_at: int) -> tuple[int, Formula]:
    """Queries (B, H, Lq, D) with keys (B, Hkv, Lk, D), and probabilities with values (B, Hkv, Lk, Dv)."""

    def count(call: Call) -> tuple[float, Work]:
        query, value = call.shape(0, num_dims=4), call.shape(2, num_dims=4)
        work = Work.CAUSAL_ATTENTION if call.value(causal_at) else Work.ATTENTION
        return 2.0 * prod(query[:3]) * value[2] * (query[3] + value[3]), work

    return 0, count


def _attention_backward(causal_at: int) -> tuple[int, Formula]:
    """Five products of equal size: four gradients, and the scores a second time.

    FlashAttention (Dao et al. 2022, arXiv:2205.14135), algorithm 4. Values as wide as keys only.
    """

    def count(call: Call) -> tuple[float, Work]:
        query, value = call.shape(1, num_dims=4), call.shape(3, num_dims=4)
        if query[3] != value[3]:
            raise ValueError("values are wider or narrower than keys")
        work = Work.CAUSAL_ATTENTION_AGAIN if call.value(causal_at) else Work.ATTENTION_AGAIN
        return 5 * 2.0 * prod(query) * value[2], work

    return 1, count


FORMULAS: Mapping[str, tuple[int, Formula]] = MappingProxyType(
    {
        "aten::mm": _product(0),
        "aten::addmm": _product(1),
        "aten::_addmm_activation": _product(1),
        "aten::bmm": _product(0),
        "aten::baddbmm": _product(1),
        "aten::_scaled_mm": _product(0),
        "aten::convolution": (0, _convolution),
        "aten::convolution_backward": (1, _convolution_backward),
        "aten::_scaled_dot_product_flash_attention": _attention(4),
        "aten::_scaled_dot_product_flash_attention_backward": _attention_backward(11),
        "aten::_scaled_dot_product_flash_attention_for_cpu": _attention(4),
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward(7),
        "aten::_scaled_dot_product_efficient_attention": _attention(6),
        "aten::_scaled_dot_product_efficient_attention_backward": _attention_backward(11),
        "aten::_scaled_dot_product_cudnn_attention": _attention(6),
        "aten::_scaled_dot_product_cudnn_attention_backward": _attention_backward(14),
    }
)
"""Operator -> position of the argument that has the products' dtype, and formula. Operators called inside one of them
are part of it."""


@lru_cache(maxsize=1 << 14)
def shape_flops(name: str, call: Recorded) -> Count | None:
    """Count an operator. None if it has no formula, or if its shapes were not recorded or are impossible."""
    known = FORMULAS.get(name)
    if known is None or not call[0] or not call[1]:
        return None
    at, formula = known
    try:
        arguments = Call(call)
        dtype = DTYPES.get(arguments.types[at])
        flops, work = formula(arguments)
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    return None if dtype is None else Count(flops=flops, dtype=dtype, work=work)
