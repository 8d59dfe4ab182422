"""Linear layers and experts whose three products have operands in the types of a format, and sums in fp32.

Forward multiplies input and weight; backward multiplies the gradient with each of them. The operands are numbers of the
format's `compute` type, rounded once more. Hardware with such products runs them (`torch._scaled_mm`). Elsewhere, for
blocks with own scales and for experts, the rounded operands are multiplied in fp32: operands are exact, and sums differ
only in their order.

The two products of backward are nodes of their own in autograd's graph, so that a schedule that splits backward
computes each of them once.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Placement, Shard
from torch.nn import functional

from traincope.engine.precision.block_scales import BlockOperand
from traincope.engine.precision.formats import Format
from traincope.engine.precision.grouped_products import GroupedProduct
from traincope.engine.precision.scales import Operand, Rounded
from traincope.engine.ranks.torch_private import in_backward, scaled_product

SIDE_MULTIPLE = 16
"""The hardware's products need sides that are multiples of this."""
FIRST_WITH_FP8 = (8, 9)
"""Compute capability of the first NVIDIA GPUs with fp8 products (Ada). Not tried on one."""

Operands = dict[str, Operand | BlockOperand]
"""`input`, `weight` and `gradient` of a layer's products."""


class ScaledLinear(nn.Linear):
    """A linear layer without bias that rounds its operands."""

    def __init__(self, linear: nn.Linear, number_format: Format, *, steps: int, device: torch.device) -> None:
        """Take the weight of `linear`. `steps` is the length of the histories."""
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        self.weight = linear.weight
        self.compute = number_format.compute
        self.operands = _operands(number_format, steps=steps, device=device)

    def forward(self, input: Tensor) -> Tensor:
        """(..., K) -> (..., M), in the format's `compute` type. DTensors as tensor parallelism gives them."""
        if not isinstance(self.weight, DTensor):
            return self._multiply(input, self.weight)
        assert isinstance(input, DTensor)
        local, placement = _local_input(input, self.weight)
        product = self._multiply(local, self.weight.to_local())
        return DTensor.from_local(product, self.weight.device_mesh, [placement], run_check=False)

    def _multiply(self, x: Tensor, weight: Tensor) -> Tensor:
        rows = x.to(self.compute).flatten(0, -2)
        product = rounded_product(rows, weight.to(self.compute).t(), self.operands, record=self.training)
        restored: Tensor = product.unflatten(0, x.shape[:-1])
        return restored


class ScaledGroupedProduct(GroupedProduct):
    """The product of experts with rounded operands. All experts of a layer share their scales, as one matrix would."""

    def __init__(self, number_format: Format, *, steps: int, device: torch.device) -> None:
        super().__init__()
        self.operands = _operands(number_format, steps=steps, device=device)

    def forward(self, rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        return rounded_product(rows, weight, self.operands, ends=ends, record=self.training)


def _operands(number_format: Format, *, steps: int, device: torch.device) -> Operands:
    assert number_format.operands is not None
    assert number_format.gradients is not None
    types = {"input": number_format.operands, "weight": number_format.operands, "gradient": number_format.gradients}
    side = number_format.block
    if side is not None:
        return {name: BlockOperand(dtype, side=side, square=name == "weight") for name, dtype in types.items()}
    return {name: Operand(dtype, steps=steps, device=device) for name, dtype in types.items()}


def _local_input(x: DTensor, weight: DTensor) -> tuple[Tensor, Placement]:
    """This rank's input, and the placement of its output: a column of products, or a part of a sum."""
    if weight.placements[0].is_shard(0):
        return x.to_local(grad_placements=[Partial()]), Shard(x.ndim - 1)
    return x.to_local(), Partial()


def rounded_product(
    rows: Tensor, weight: Tensor, operands: Operands, *, ends: Tensor | None = None, record: bool
) -> Tensor:
    """Rows (N, K) x weight (K, M) -> (N, M). With `ends` (E,) of experts' rows, the weight is (E, K, M).

    `record`: later steps' scales follow these numbers, unless they are computed again in backward.
    """
    if record and torch.is_grad_enabled() and not in_backward():
        operands["input"].record(rows)
        operands["weight"].record(weight)
    inputs = operands["input"].rounded(rows)
    product: Tensor = _OfInput.apply(rows, inputs, weight.detach(), operands, ends)
    of_weight: Tensor = _OfWeight.apply(weight, inputs, product.shape, operands, ends)
    both: Tensor = _Both.apply(product, of_weight, operands)
    return both


class _OfInput(torch.autograd.Function):
    """The product, with the gradient of its rows."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, inputs: Rounded, weight: Tensor, operands: Operands, ends: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.operands, ctx.ends = operands, ends
        return multiply(inputs, operands["weight"].rounded(weight), ends=ends, dtype=rows.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        (weight,) = ctx.saved_tensors
        gradients, weights = ctx.operands["gradient"].rounded(gradient), ctx.operands["weight"].rounded(weight)
        to_rows = multiply(gradients, weights.transposed(), ends=ctx.ends, dtype=gradient.dtype)
        return to_rows, None, None, None, None


class _OfWeight(torch.autograd.Function):
    """Zeros with the shape of the product, and with the gradient of its weight."""

    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, inputs: Rounded, shape: torch.Size, operands: Operands, ends: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(inputs.values, inputs.scale)
        ctx.block, ctx.operands, ctx.ends = inputs.block, operands, ends
        return weight.new_zeros(()).expand(shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        values, scale = ctx.saved_tensors
        inputs = ctx.operands["input"].turned(Rounded(values, scale, ctx.block))
        gradients = ctx.operands["gradient"].rounded(gradient, along=-2)
        if ctx.ends is not None:
            return multiply(inputs.transposed(), gradients, ends=ctx.ends, dtype=gradient.dtype), *[None] * 4
        # In the memory order of the layer's matrix (M, K). W of a pipeline makes this the parameter's gradient as it
        # is, and torch's fused AdamW reads both in one order.
        return multiply(gradients.transposed(), inputs, dtype=gradient.dtype).mT, *[None] * 4


class _Both(torch.autograd.Function):
    """The product. Its gradient goes to both nodes."""

    @staticmethod
    def forward(ctx: Any, product: Tensor, of_weight: Tensor, operands: Operands) -> Tensor:  # noqa: ARG004
        ctx.operands = operands
        return product.detach()  # a view would make FSDP warn that in-place operators on it are lost

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        ctx.operands["gradient"].record(gradient)
        return gradient, gradient, None


def multiply(a: Rounded, b: Rounded, *, ends: Tensor | None = None, dtype: torch.dtype) -> Tensor:
    """(N, K) x (K, M) -> (N, M): sums in fp32, the result rounded to `dtype`.

    `ends` of experts' rows or columns: (N, K) x (E, K, M) -> (N, M), or (K, N) x (N, M) -> (E, K, M).
    """
    by_hardware = ends is None and a.block is None and has_fp8_products(a.values.device)
    if by_hardware and not any(side % SIDE_MULTIPLE for side in (*a.values.shape, *b.values.shape)):
        return scaled_product(a.values, b.values, scales=(a.scale.reciprocal(), b.scale.reciprocal()), dtype=dtype)
    with torch.autocast(a.values.device.type, enabled=False):
        if ends is None:
            return (a.wide() @ b.wide()).to(dtype)
        return functional.grouped_mm(a.wide(), b.wide(), offs=ends).to(dtype)


def has_fp8_products(device: torch.device) -> bool:
    """Return True if the device multiplies fp8 itself. torch also has such a product on CPUs, slower than fp32."""
    return (
        device.type == "cuda"
        and torch.version.hip is None
        and torch.cuda.get_device_capability(device) >= FIRST_WITH_FP8
    )


def round_products(blocks: nn.Module, number_format: Format, *, steps: int, device: torch.device) -> None:
    """Replace linear layers and experts' products in `blocks`, still on the meta device, if the format rounds."""
    if number_format.operands is None:
        return
    for name, module in list(blocks.named_modules()):
        parent, _, child = name.rpartition(".")
        if isinstance(module, nn.Linear):
            layer: nn.Module = ScaledLinear(module, number_format, steps=steps, device=device)
        elif isinstance(module, GroupedProduct):
            layer = ScaledGroupedProduct(number_format, steps=steps, device=device)
        else:
            continue
        setattr(blocks.get_submodule(parent), child, layer)


def operands_of(module: nn.Module) -> dict[str, Operand]:
    """`layer.operand` -> the operand, for all operands of a module that have a history."""
    return {
        f"{name.removeprefix('module.')}.{kind}": operand
        for name, layer in module.named_modules()
        if isinstance(layer, ScaledLinear | ScaledGroupedProduct)
        for kind, operand in layer.operands.items()
        if isinstance(operand, Operand)
    }
