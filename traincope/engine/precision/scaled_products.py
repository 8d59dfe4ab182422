"""Linear layers whose three products have operands in the types of a format, and sums in fp32.

Forward multiplies input and weight; backward multiplies the gradient with each of them. The operands are numbers of the
format's `compute` type, rounded once more. Hardware with such products runs them (`torch._scaled_mm`). Elsewhere the
rounded operands are multiplied in fp32: operands are exact, and sums differ only in their order.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Placement, Shard

from traincope.engine.precision.formats import Format
from traincope.engine.precision.scales import Operand, Rounded, round_to
from traincope.engine.ranks.torch_private import in_backward, scaled_product

SIDE_MULTIPLE = 16
"""The hardware's products need sides that are multiples of this."""
FIRST_WITH_FP8 = (8, 9)
"""Compute capability of the first NVIDIA GPUs with fp8 products (Ada). Not tried on one."""


class ScaledLinear(nn.Linear):
    """A linear layer without bias that rounds its operands."""

    def __init__(self, linear: nn.Linear, number_format: Format, *, steps: int, device: torch.device) -> None:
        """Take the weight of `linear`. `steps` is the length of the histories."""
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        assert number_format.operands is not None
        assert number_format.gradients is not None
        self.weight = linear.weight
        self.compute = number_format.compute
        self.operands = {
            "input": Operand(number_format.operands, steps=steps, device=device),
            "weight": Operand(number_format.operands, steps=steps, device=device),
            "gradient": Operand(number_format.gradients, steps=steps, device=device),
        }

    def forward(self, input: Tensor) -> Tensor:
        """(..., K) -> (..., M), in the format's `compute` type. DTensors as tensor parallelism gives them."""
        if not isinstance(self.weight, DTensor):
            return self._multiply(input, self.weight)
        assert isinstance(input, DTensor)
        local, placement = _local_input(input, self.weight)
        product = self._multiply(local, self.weight.to_local())
        return DTensor.from_local(product, self.weight.device_mesh, [placement], run_check=False)

    def _multiply(self, x: Tensor, weight: Tensor) -> Tensor:
        record = self.training and torch.is_grad_enabled() and not in_backward()
        rows = x.to(self.compute).flatten(0, -2)
        product: Tensor = _Product.apply(rows, weight.to(self.compute), self.operands, record)
        restored: Tensor = product.unflatten(0, x.shape[:-1])
        return restored


def _local_input(x: DTensor, weight: DTensor) -> tuple[Tensor, Placement]:
    """This rank's input, and the placement of its output: a column of products, or a part of a sum."""
    if weight.placements[0].is_shard(0):
        return x.to_local(grad_placements=[Partial()]), Shard(x.ndim - 1)
    return x.to_local(), Partial()


class _Product(torch.autograd.Function):
    """Rows (N, K) x weight (M, K) -> (N, M)."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, operands: dict[str, Operand], record: bool) -> Tensor:
        if record:
            operands["input"].record(rows)
            operands["weight"].record(weight)
        inputs, weights = (_rounded(operands[name], tensor) for name, tensor in (("input", rows), ("weight", weight)))
        ctx.save_for_backward(inputs.values, inputs.scale, weight, weights.scale)
        ctx.operands = operands
        return multiply(inputs, weights.transposed(), dtype=rows.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        values, input_scale, weight, weight_scale = ctx.saved_tensors
        operand = ctx.operands["gradient"]
        operand.record(gradient)
        gradients = _rounded(operand, gradient)
        weights = round_to(weight, ctx.operands["weight"].dtype, weight_scale)
        to_input = multiply(gradients, weights, dtype=gradient.dtype)
        to_weight = multiply(gradients.transposed(), Rounded(values, input_scale), dtype=weight.dtype)
        return to_input, to_weight, None, None


def _rounded(operand: Operand, numbers: Tensor) -> Rounded:
    return round_to(numbers, operand.dtype, operand.scale(numbers))


def multiply(a: Rounded, b: Rounded, *, dtype: torch.dtype) -> Tensor:
    """(N, K) x (K, M) -> (N, M): sums in fp32, the result rounded to `dtype`."""
    if has_fp8_products(a.values.device) and not any(
        side % SIDE_MULTIPLE for side in (*a.values.shape, *b.values.shape)
    ):
        return scaled_product(a.values, b.values, scales=(a.scale.reciprocal(), b.scale.reciprocal()), dtype=dtype)
    with torch.autocast(a.values.device.type, enabled=False):
        return (a.wide() @ b.wide()).to(dtype)


def has_fp8_products(device: torch.device) -> bool:
    """Return True if the device multiplies fp8 itself. torch also has such a product on CPUs, slower than fp32."""
    return (
        device.type == "cuda"
        and torch.version.hip is None
        and torch.cuda.get_device_capability(device) >= FIRST_WITH_FP8
    )


def round_products(blocks: nn.Module, number_format: Format, *, steps: int, device: torch.device) -> None:
    """Replace the linear layers in `blocks`, still on the meta device, if the format rounds their operands."""
    if number_format.operands is None:
        return
    linears = {name: module for name, module in blocks.named_modules() if isinstance(module, nn.Linear)}
    for name, linear in linears.items():
        parent, _, child = name.rpartition(".")
        layer = ScaledLinear(linear, number_format, steps=steps, device=device)
        setattr(blocks.get_submodule(parent), child, layer)


def operands_of(module: nn.Module) -> dict[str, Operand]:
    """`layer.operand` -> the operand, for all layers of a module that round."""
    return {
        f"{name.removeprefix('module.')}.{kind}": operand
        for name, layer in module.named_modules()
        if isinstance(layer, ScaledLinear)
        for kind, operand in layer.operands.items()
    }
