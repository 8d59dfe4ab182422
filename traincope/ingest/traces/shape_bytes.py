"""Bytes that operators read and write at least, by recorded shapes and strides: each distinct element once.

This is the compulsory traffic of the roofline model (Williams, Waterman and Patterson 2009, "Roofline: an insightful
visual performance model", section 3). Tensors that a cache holds move fewer bytes, and a kernel that reads a tensor
twice moves more. Statistics and random states, which are small, are left out. An operator without recorded strides, or
with an argument whose size they leave open (lists of tensors), has no bytes.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from math import prod
from types import MappingProxyType
from typing import NamedTuple

from traincope.ingest.traces.recorded_call import FLOATING, SIZES, Call, Recorded
from traincope.ingest.traces.shape_flops import convolved_positions

CODES = {5: "c10::Half", 6: "float", 7: "double", 15: "c10::BFloat16"}
"""torch's numbers of floating dtypes -> Kineto's names."""


class Traffic(NamedTuple):
    read_bytes: int
    written_bytes: int


Formula = Callable[[Call], tuple[int, int]]


def _read(call: Call, arguments: Iterable[int]) -> int:
    """Bytes of the tensors among these arguments."""
    return sum(call.num_bytes(at) for at in arguments if call.types[at] in SIZES)


def _tensors(call: Call) -> list[int]:
    """Positions of the tensors. Raises ValueError for a list of tensors."""
    if any("List" in kind and kind != "ScalarList" for kind in call.types):
        raise ValueError("a list of tensors")
    return [at for at, kind in enumerate(call.types) if kind in SIZES]


def _pointwise(max_tensors: int) -> Formula:
    """Each tensor is read, and the broadcast result is written. Raises ValueError for a given result (`out`)."""

    def count(call: Call) -> tuple[int, int]:
        tensors = _tensors(call)
        if len(tensors) > max_tensors:
            raise ValueError("a given result")
        return _read(call, tensors), prod(_broadcast(call, tensors)) * SIZES[_promoted(call, tensors)]

    return count


def _compared(call: Call) -> tuple[int, int]:
    tensors = _tensors(call)
    return _read(call, tensors), prod(_broadcast(call, tensors)) * SIZES["bool"]


def _in_place(call: Call) -> tuple[int, int]:
    """Each tensor is read, and the first is written."""
    return _read(call, _tensors(call)), call.num_bytes(0)


def _copied(call: Call) -> tuple[int, int]:
    return call.num_bytes(1), call.num_bytes(0)


def _filled(call: Call) -> tuple[int, int]:
    return 0, call.num_bytes(0)


def _broadcast(call: Call, tensors: list[int]) -> list[int]:
    """Shape of the result. Raises ValueError for shapes that do not broadcast."""
    shapes = [call.shape(at) for at in tensors]
    rank = max(map(len, shapes))
    padded = [[1] * (rank - len(shape)) + shape for shape in shapes]
    columns = [{length for length in column if length != 1} or {1} for column in zip(*padded, strict=True)]
    if any(len(column) > 1 for column in columns):
        raise ValueError(f"{shapes} do not broadcast")
    return [column.pop() for column in columns]


def _promoted(call: Call, tensors: list[int]) -> str:
    """Floating dtype of the result, by torch's type promotion: tensors with dims decide over those without.

    Raises ValueError without a floating tensor.
    """
    floating = [at for at in tensors if call.types[at] in FLOATING]
    kinds = {call.types[at] for at in floating if call.shape(at)} or {call.types[at] for at in floating}
    if not kinds:
        raise ValueError("no floating tensor")
    halves = kinds == {"c10::Half", "c10::BFloat16"}
    return "float" if halves else max(kinds, key=lambda kind: SIZES[kind])


def _softmax(call: Call) -> tuple[int, int]:
    """The third argument is true if float16 becomes float32."""
    return call.num_bytes(0), prod(call.shape(0)) * (SIZES["float"] if call.value(2) else call.size(0))


def _softmax_backward(call: Call) -> tuple[int, int]:
    """The last argument is the dtype of the gradient."""
    return _read(call, (0, 1)), prod(call.shape(0)) * SIZES[CODES[call.value(3)]]


def _reduced(call: Call) -> tuple[int, int]:
    """Over the dims of the second argument, or over all without it. Raises ValueError for integers."""
    if call.types[0] not in FLOATING:
        raise ValueError("integers")
    shape, dims = call.shape(0), call.value(1) if len(call) > 2 else None
    gone = {dim % len(shape) for dim in dims} if dims else set(range(len(shape)))
    code = call.value(len(call) - 1) if call.types[-1] == "Scalar" else None
    size = SIZES[CODES[code]] if code is not None else call.size(0)
    return call.num_bytes(0), prod(length for dim, length in enumerate(shape) if dim not in gone) * size


def _dropout(call: Call) -> tuple[int, int]:
    """Also writes the mask of bools."""
    elements = prod(call.shape(0))
    return call.num_bytes(0), elements * (call.size(0) + SIZES["bool"])


def _gradients(*, reads: range, of: tuple[int, ...], mask: int | None) -> Formula:
    """Reads the arguments `reads`, and writes the gradient of each of `of` that the argument `mask` asks for."""

    def count(call: Call) -> tuple[int, int]:
        wanted = [True] * len(of) if mask is None else call.value(mask)
        written = sum(prod(call.shape(at)) * call.size(at) for at, asked in zip(of, wanted, strict=True) if asked)
        return _read(call, reads), written

    return count


def _normalised(*, reads: range) -> Formula:
    """Reads the arguments `reads`, and writes a result like the first."""
    return lambda call: (_read(call, reads), prod(call.shape(0)) * call.size(0))


def _product(left_at: int) -> Formula:
    """[..., m, k] x [..., k, n], and the tensors before them, which are added."""

    def count(call: Call) -> tuple[int, int]:
        left, right = call.shape(left_at), call.shape(left_at + 1)
        return _read(call, range(left_at + 2)), prod(left[:-1]) * right[-1] * call.size(left_at)

    return count


def _convolution(call: Call) -> tuple[int, int]:
    """Raises ValueError for a transposed one."""
    if call.value(6):
        raise ValueError("transposed")
    out = call.shape(0)[0] * call.shape(1)[0] * prod(convolved_positions(call))
    return _read(call, range(3)), out * call.size(0)


def _convolution_backward(call: Call) -> tuple[int, int]:
    """The gradient of the input needs the weight, and that of the weight the input."""
    of_input, of_weight, of_bias = call.value(10)
    reads = _read(call, (0, *((2,) if of_input else ()), *((1,) if of_weight else ())))
    sizes = [prod(call.shape(at)) * call.size(at) for at in (1, 2)] + [call.shape(2)[0] * call.size(2)]
    return reads, sum(size for size, asked in zip(sizes, (of_input, of_weight, of_bias), strict=True) if asked)


def _attention(call: Call) -> tuple[int, int]:
    """Queries (B, H, Lq, D), keys, values (B, Hkv, Lk, Dv) -> (B, H, Lq, Dv), as a fused kernel moves them.

    FlashAttention (Dao et al. 2022, arXiv:2205.14135), section 3.1: scores stay on the chip.
    """
    query, value = call.shape(0, num_dims=4), call.shape(2, num_dims=4)
    return _read(call, range(3)), prod(query[:3]) * value[3] * call.size(0)


UNARY = (
    *("neg", "abs", "exp", "log", "sqrt", "rsqrt", "reciprocal", "sin", "cos"),
    *("relu", "gelu", "silu", "sigmoid", "tanh"),
)
BINARY = (
    *("add", "sub", "rsub", "mul", "div", "pow", "maximum", "minimum", "clamp_min", "clamp_max"),
    *("threshold_backward", "gelu_backward", "silu_backward", "sigmoid_backward", "tanh_backward"),
)
TERNARY = ("clamp", "lerp", "addcmul", "addcdiv", "where")
IN_PLACE = (
    *("add_", "sub_", "mul_", "div_", "neg_", "sqrt_", "rsqrt_", "clamp_", "clamp_min_", "lerp_", "addcmul_"),
    *("addcdiv_", "relu_", "silu_", "sigmoid_", "masked_fill_"),
)
COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")
_FORMULAS: dict[str, Formula] = {
    **dict.fromkeys(UNARY, _pointwise(1)),
    **dict.fromkeys(BINARY, _pointwise(2)),
    **dict.fromkeys(TERNARY, _pointwise(3)),
    **dict.fromkeys(IN_PLACE, _in_place),
    **dict.fromkeys(COMPARED, _compared),
    "copy_": _copied,
    "fill_": _filled,
    "zero_": _filled,
    "native_dropout": _dropout,
    "_softmax": _softmax,
    "_log_softmax": _softmax,
    "_softmax_backward_data": _softmax_backward,
    "_log_softmax_backward_data": _softmax_backward,
    "sum": _reduced,
    "mean": _reduced,
    "native_layer_norm": _normalised(reads=range(4)),
    "native_layer_norm_backward": _gradients(reads=range(7), of=(1, 5, 6), mask=7),
    "cudnn_batch_norm": _normalised(reads=range(5)),
    "miopen_batch_norm": _normalised(reads=range(5)),
    "native_batch_norm": _normalised(reads=range(5)),
    "cudnn_batch_norm_backward": _gradients(reads=range(7), of=(0, 2, 2), mask=None),
    "miopen_batch_norm_backward": _gradients(reads=range(7), of=(0, 2, 2), mask=None),
    "native_batch_norm_backward": _gradients(reads=range(7), of=(1, 2, 2), mask=9),
    "mm": _product(0),
    "addmm": _product(1),
    "_addmm_activation": _product(1),
    "bmm": _product(0),
    "baddbmm": _product(1),
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "_scaled_dot_product_flash_attention": _attention,
    "_scaled_dot_product_flash_attention_backward": _gradients(reads=range(6), of=(1, 2, 3), mask=None),
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _gradients(reads=range(6), of=(1, 2, 3), mask=None),
    "_scaled_dot_product_efficient_attention": _attention,
    "_scaled_dot_product_cudnn_attention": _attention,
    "_scaled_dot_product_cudnn_attention_backward": _gradients(reads=range(6), of=(1, 2, 3), mask=None),
}
FORMULAS: Mapping[str, Formula] = MappingProxyType({f"aten::{name}": formula for name, formula in _FORMULAS.items()})
"""Operator -> formula. Operators called inside one of them are part of it."""


@lru_cache(maxsize=1 << 14)
def shape_bytes(name: str, call: Recorded) -> Traffic | None:
    """Bytes that an operator moves. None if it has no formula, or if its shapes leave them open."""
    formula = FORMULAS.get(name)
    if formula is None or not all(call[:3]):
        return None
    try:
        return Traffic(*formula(Call(call)))
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
