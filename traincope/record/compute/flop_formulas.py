"""FLOPs of matrix products and attention, from the shapes of their arguments.

By the usual convention a multiply and its add count as two, the bias and the softmax as nothing. Attention counts in
full; halving causal attention is left to the analysis.
"""

from collections.abc import Callable
from math import prod
from typing import Any

from traincope.events import Work
from traincope.record.instrumentation.torch_private import fp32_runs_as_tf32

Arguments = dict[str, Any]
"""Arguments of one call, by the names of the operator's schema. Defaulted arguments are missing."""

FLOAT32_CONVOLUTION = "float32 convolution"
"""Stands for the dtype of a float32 convolution: a separate torch setting decides whether it runs as TF32."""

DENSE = "torch.strided"
"""The layout of tensors that hold all their elements."""

IN_PAIRS = "_x2"
"""End of the name of a dtype that holds two numbers per element, in the contracted dimension: fp4."""

Parts = tuple[tuple[Work, int], ...]
Count = tuple[Any, Parts]
"""The dtype and the FLOPs of a call. Empty if the shapes do not determine them."""


def is_dense(call: Arguments) -> bool:
    """Return whether the shapes of a call's tensors determine the number of multiplied elements."""
    return all(str(getattr(value, "layout", DENSE)) == DENSE for value in call.values())


def _product(a: Any, b: Any) -> Count:
    """Count (..., M, K) x (..., K, N), or (..., K) x (K,)."""
    columns = b.shape[-1] if len(b.shape) > 1 else 1
    pairs = 2 if str(a.dtype).endswith(IN_PAIRS) else 1
    return a.dtype, ((Work.MATMUL, 2 * pairs * prod(a.shape) * columns),)


def _mm(call: Arguments) -> Count:
    return _product(call["self"], call["mat2"])


def _addmm(call: Arguments) -> Count:
    return _product(call["mat1"], call["mat2"])


def _baddbmm(call: Arguments) -> Count:
    return _product(call["batch1"], call["batch2"])


def _vector(call: Arguments) -> Count:
    return _product(call["self"], call["vec"])


def _addmv(call: Arguments) -> Count:
    return _product(call["mat"], call["vec"])


def _grouped_mm(call: Arguments) -> Count:
    """Count groups along the rows (M, K) x (E, K, N), the columns (E, M, K) x (K, N), or inside: (M, K) x (K, N).

    Each group's part is multiplied once, so the grouped dimension counts once.
    """
    a, b = call["self"], call["mat2"]
    groups = a.shape[0] if len(a.shape) == len(b.shape) == 3 else 1
    return a.dtype, ((Work.MATMUL, 2 * groups * a.shape[-2] * a.shape[-1] * b.shape[-1]),)


def _convolve(data: Any, weight: Any, out: tuple[int, ...], *, transposed: bool) -> int:
    """Count a convolution: every position of the output (transposed: of the input) meets the whole filter once."""
    positions = prod(data.shape[2:]) if transposed else prod(out[2:])
    return int(2 * data.shape[0] * positions * prod(weight.shape))


def _convolution(call: Arguments) -> Count:
    data, weight = call["input"], call["weight"]
    out = (*data.shape[:2], *(_conv_out(call, axis) for axis in range(len(data.shape) - 2)))
    return _factor(data), ((Work.MATMUL, _convolve(data, weight, out, transposed=call["transposed"])),)


def _factor(data: Any) -> Any:
    return FLOAT32_CONVOLUTION if str(data.dtype) == "torch.float32" else data.dtype


def _conv_out(call: Arguments, axis: int) -> int:
    """Return the length of the output along a spatial axis (torch.nn.Conv2d's formula)."""
    stride, padding, dilation = (_per_axis(call[name], axis) for name in ("stride", "padding", "dilation"))
    length, width = call["input"].shape[2 + axis], call["weight"].shape[2 + axis]
    return int((length + 2 * padding - dilation * (width - 1) - 1) // stride + 1)


def _per_axis(values: Any, axis: int) -> int:
    return int(values[axis] if len(values) > 1 else values[0])


def _convolution_backward(call: Arguments) -> Count:
    """Count as much as forward for the input's gradient, and as much for the weight's."""
    once = _convolve(call["input"], call["weight"], call["grad_output"].shape, transposed=call["transposed"])
    return _factor(call["input"]), ((Work.MATMUL, once * sum(call["output_mask"][:2])),)


def _products_of_attention(call: Arguments) -> tuple[int, int]:
    """Count queries (B, H, Lq, D) x keys (B, Hkv, Lk, D), and probabilities x values (B, Hkv, Lk, Dv)."""
    query, value = call["query"], call["value"]
    lengths = prod(query.shape[:-1]) * int(value.shape[-2])
    return 2 * lengths * int(query.shape[-1]), 2 * lengths * int(value.shape[-1])


def _attention(call: Arguments) -> Count:
    work = Work.CAUSAL_ATTENTION if call.get("is_causal") else Work.ATTENTION
    return call["query"].dtype, ((work, sum(_products_of_attention(call))),)


def _attention_backward(call: Arguments) -> Count:
    """Count the gradients of queries and keys, of probabilities and values, and the scores a second time.

    FlashAttention (Dao et al. 2022, arXiv:2205.14135), algorithm 4.
    """
    causal = call.get("is_causal")
    work, again = (
        (Work.CAUSAL_ATTENTION, Work.CAUSAL_ATTENTION_AGAIN) if causal else (Work.ATTENTION, Work.ATTENTION_AGAIN)
    )
    scores, mixing = _products_of_attention(call)
    return call["query"].dtype, ((work, 2 * (scores + mixing)), (again, scores))


def _unless_packed(formula: Callable[[Arguments], Count]) -> Callable[[Arguments], Count]:
    """Adapt a formula to (B, L, H, D). For documents packed end to end only the device knows the lengths."""

    def count(call: Arguments) -> Count:
        if call.get("cum_seq_q") is not None or call.get("cu_seqlens_q") is not None:
            return call["query"].dtype, ()
        turned = {name: call[name].transpose(1, 2) for name in ("query", "key", "value")}
        return formula({**turned, "is_causal": call.get("is_causal") or call.get("custom_mask_type")})

    return count


FORMULAS: dict[str, Callable[[Arguments], Count]] = {
    **dict.fromkeys(("mm", "mm.out", "mm.dtype", "mm.dtype_out", "bmm", "bmm.out", "bmm.dtype", "bmm.dtype_out"), _mm),
    **dict.fromkeys(("addmm", "addmm.out", "addmm.dtype", "addmm.dtype_out", "addmm_"), _addmm),
    **dict.fromkeys(("baddbmm", "baddbmm.out", "baddbmm.dtype", "baddbmm.dtype_out", "baddbmm_"), _baddbmm),
    **dict.fromkeys(("addbmm", "addbmm.out", "addbmm_"), _baddbmm),
    **dict.fromkeys(("mv", "mv.out"), _vector),
    **dict.fromkeys(("addmv", "addmv.out", "addmv_"), _addmv),
    **dict.fromkeys(("_scaled_mm", "_scaled_mm.out", "_scaled_mm_v2", "_scaled_mm_v2.out"), _mm),
    **dict.fromkeys(("_int_mm", "_int_mm.out"), _mm),
    **dict.fromkeys(("_grouped_mm", "_scaled_grouped_mm", "_scaled_grouped_mm_v2"), _grouped_mm),
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "_scaled_dot_product_flash_attention": _attention,
    "_scaled_dot_product_flash_attention.quantized": _attention,
    "_scaled_dot_product_flash_attention_backward": _attention_backward,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "_scaled_dot_product_efficient_attention": _attention,
    "_scaled_dot_product_efficient_attention_backward": _attention_backward,
    "_scaled_dot_product_cudnn_attention": _attention,
    "_scaled_dot_product_cudnn_attention_backward": _attention_backward,
    "_scaled_dot_product_fused_attention_overrideable": _attention,
    "_scaled_dot_product_fused_attention_overrideable_backward": _attention_backward,
    "_flash_attention_forward": _unless_packed(_attention),
    "_flash_attention_forward.quantized": _unless_packed(_attention),
    "_flash_attention_backward": _unless_packed(_attention_backward),
    "_efficient_attention_forward": _unless_packed(_attention),
    "_efficient_attention_backward": _unless_packed(_attention_backward),
}
"""Operator of `aten`, with its overload -> its formula. A new operator is one line.

Operators called inside one of them are part of it.
"""


def _of_library(formula: Callable[[Arguments], Count]) -> Callable[[Arguments], Count]:
    """Adapt a formula to the flash_attn library: (B, L, H, D), and perhaps a window, which shapes do not show."""

    def count(call: Arguments) -> Count:
        right = 0 if call["causal"] else -1
        if call.get("window_size_left", -1) != -1 or call.get("window_size_right", -1) not in (-1, right):
            return call["q"].dtype, ()
        query, key, value = (call[name].transpose(1, 2) for name in ("q", "k", "v"))
        return formula({"query": query, "key": key, "value": value, "is_causal": call["causal"]})

    return count


def _packed(call: Arguments) -> Count:
    return call["q"].dtype, ()


FLASH_ATTN = "flash_attn"
"""Namespace of the flash_attn library's operators."""
LIBRARY_FORMULAS: dict[str, Callable[[Arguments], Count]] = {
    "_flash_attn_forward": _of_library(_attention),
    "_flash_attn_backward": _of_library(_attention_backward),
    "_flash_attn_varlen_forward": _packed,
    "_flash_attn_varlen_backward": _packed,
}
"""Operator of `flash_attn` -> its formula."""


def implied_flops(module: Any, activation: Any) -> int:
    """Return the FLOPs that a module's own matrices imply for an input (..., channels), without its children's
    matrices.

    Two per element and token. Of stacked matrices (experts, heads), a token uses one. Zero for inputs that no matrix
    multiplies, such as token ids.
    """
    if type(module).__name__ in ("LayerNorm", "RMSNorm"):
        return 0
    if not (_is_tensor(activation) and activation.is_floating_point() and activation.dim() > 0):
        return 0
    convolves, shape = hasattr(module, "kernel_size"), activation.shape
    matrices = (
        each for each in module._parameters.values() if each is not None and each.dim() > 1 and each.shape[0] > 1
    )
    elements = sum(each.numel() // (each.shape[0] if each.dim() > 2 and not convolves else 1) for each in matrices)
    tokens = prod((shape[0], *shape[2:])) if convolves and len(shape) > 1 else prod(shape[:-1])
    return int(2 * elements * tokens)


def linear_flops(module: Any, activation: Any, result: Any) -> int:
    """Return the FLOPs of a module that multiplies an input (..., K) by its only matrix (N, K) to a result (..., N).

    Zero for any other module: then its matrices do not determine its products.
    """
    matrices = [each for each in module._parameters.values() if each is not None and each.dim() > 1]
    if len(matrices) != 1 or matrices[0].dim() != 2 or not _is_tensor(result):
        return 0
    columns, rows = matrices[0].shape
    fits = activation.shape[-1] == rows and tuple(result.shape) == (*activation.shape[:-1], columns)
    return 2 * prod(activation.shape) * int(columns) if fits else 0


def _is_tensor(value: Any) -> bool:
    """Return whether a module's argument or result is a tensor, without a question that another object could answer."""
    from torch import Tensor

    return issubclass(type(value), Tensor)


def dtype_name(dtype: Any) -> str:
    """Return torch's name of a dtype; empty for None. fp32 that a GPU multiplies as TF32 is called tf32, for
    its peak.
    """
    name = "" if dtype is None else str(dtype).removeprefix("torch.")
    if name in ("float32", FLOAT32_CONVOLUTION):
        return "tf32" if fp32_runs_as_tf32(convolution=name == FLOAT32_CONVOLUTION) else "float32"
    return name


def is_shape_only(tensor: Any) -> bool:
    """Return whether only shapes are computed: meta tensors, and those of torch.compile and DTensor's rules."""
    return bool(tensor.is_meta) or type(tensor).__name__ == "FakeTensor"
