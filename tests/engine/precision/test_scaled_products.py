"""Products equal an independent emulation in float64, and differ from exact ones less than theory says."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.utils._python_dispatch import TorchDispatchMode

from tests.engine.precision.emulated import BF16, E4M3, E5M2, FP16, Binary, Numbers
from traincope.engine.precision.block_scales import BlockOperand
from traincope.engine.precision.formats import FORMATS
from traincope.engine.precision.scaled_products import ScaledGroupedProduct, ScaledLinear, multiply
from traincope.engine.precision.scales import Operand, Rounded, round_to
from traincope.engine.ranks.torch_private import scaled_product

CPU = torch.device("cpu")
N, K, M = 48, 64, 32
BF16_SUM = 2.0**-8
"""Largest relative error of a result that is rounded to bf16, and of the few fp32 sums before."""


def numbers(tensor: Tensor | None) -> Numbers:
    assert tensor is not None
    return tensor.detach().double().numpy()


def layer_and_input() -> tuple[ScaledLinear, Tensor]:
    torch.manual_seed(3)
    linear = nn.Linear(K, M, bias=False)
    layer = ScaledLinear(linear, FORMATS["fp8"], steps=4, device=CPU)
    return layer, torch.randn(N, K, requires_grad=True)


@pytest.mark.parametrize(
    ("dtype", "binary"),
    [
        (torch.float8_e4m3fn, E4M3),
        (torch.float8_e5m2, E5M2),
        (torch.float16, FP16),
        (torch.bfloat16, BF16),
    ],
    ids=str,
)
def test_rounding_equals_the_emulation_over_the_whole_range(dtype: torch.dtype, binary: Binary) -> None:
    """Cover halves between two numbers, numbers below the normal ones, at zero, and above the largest number."""
    torch.manual_seed(0)
    info = torch.finfo(dtype)
    spread = torch.randn(4000) * torch.exp2(torch.empty(4000).uniform_(-24, 20))
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e5m2).float() * 3 / 2
    values = torch.cat([spread, every[every.isfinite()], torch.tensor([0.0, info.max, -2 * info.max, info.tiny / 2])])
    values = values[values.isfinite()]
    rounded = round_to(values, dtype, torch.ones(()))
    np.testing.assert_array_equal(numbers(rounded.values.float()), binary.round(numbers(values)))


def test_an_infinity_stays_visible() -> None:
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        rounded = round_to(torch.tensor([float("inf"), float("nan"), 1e30]), dtype, torch.ones(())).wide()
        assert rounded.isnan().tolist() == [True, True, False]
        assert rounded[2] == torch.finfo(dtype).max


def test_the_three_products_of_fp8_equal_the_emulation() -> None:
    layer, x = layer_and_input()
    out = layer(x)
    gradient = torch.randn(N, M).bfloat16() * 1e-5
    out.backward(gradient)
    rows, weight = (E4M3.scaled_round(BF16.round(numbers(each))) for each in (x, layer.weight))
    arrived = E5M2.scaled_round(numbers(gradient))
    for result, exact, size in (
        (out, rows @ weight.T, np.abs(rows) @ np.abs(weight.T)),
        (x.grad, arrived @ weight, np.abs(arrived) @ np.abs(weight)),
        (layer.weight.grad, arrived.T @ rows, np.abs(arrived.T) @ np.abs(rows)),
    ):
        # The sum in fp32 has at most 64 terms: its error is below 64 x 2^-24 of the sum of magnitudes.
        bound = BF16_SUM * np.abs(exact) + 64 * 2.0**-24 * size
        assert (np.abs(numbers(result) - exact) <= bound).all()


def tiled(tensor: Numbers, binary: Binary, rows: int, columns: int) -> Numbers:
    """Each block rounded with the scale of its own largest number."""
    rounded = np.empty_like(tensor)
    for top in range(0, tensor.shape[0], rows):
        for left in range(0, tensor.shape[1], columns):
            block = np.s_[top : top + rows, left : left + columns]
            rounded[block] = binary.scaled_round(tensor[block])
    return rounded


def assert_products(results: list[tuple[Tensor | None, Numbers, Numbers]], *, terms: int) -> None:
    """Compare (result, factor, factor) with the exact product, within the error of an fp32 sum rounded to bf16."""
    for result, a, b in results:
        exact = a @ b
        bound = BF16_SUM * np.abs(exact) + terms * 2.0**-24 * (np.abs(a) @ np.abs(b))
        assert (np.abs(numbers(result) - exact) <= bound).all()


def with_outliers(*shape: int) -> Tensor:
    """Numbers whose magnitudes differ from place to place by factors up to 2^12, in bf16."""
    return (torch.randn(shape) * torch.exp2(torch.empty(shape).uniform_(-6, 6))).bfloat16()


def test_the_three_products_of_blocks_equal_the_emulation() -> None:
    """Whole blocks of 128 and smaller ones at the ends of all three sides.

    Backward's product for the weight sums over rows. So the kept input, in blocks of 1 x 128, is rounded to 128 x 1.
    """
    torch.manual_seed(3)
    layer = ScaledLinear(nn.Linear(300, 160, bias=False), FORMATS["fp8_block"], steps=4, device=CPU)
    layer.weight.data = with_outliers(160, 300).float()
    x, gradient = with_outliers(200, 300).float().requires_grad_(), with_outliers(200, 160) * 1e-4
    out = layer(x)
    out.backward(gradient)
    rows, weight = tiled(numbers(x), E4M3, 1, 128), tiled(numbers(layer.weight), E4M3, 128, 128)
    arrived, columns = (tiled(numbers(gradient), E4M3, *block) for block in ((1, 128), (128, 1)))
    assert_products(
        [
            (out, rows, weight.T),
            (x.grad, arrived, weight),
            (layer.weight.grad, columns.T, tiled(rows, E4M3, 128, 1)),
        ],
        terms=300,
    )


def test_blocks_confine_an_outlier_that_costs_a_whole_tensor_its_small_numbers() -> None:
    x = torch.full((2, 256), 2.0**-6)
    x[0, 0] = 2.0**20
    one, blocks = (
        Operand(torch.float8_e4m3fn, steps=1, device=CPU),
        BlockOperand(torch.float8_e4m3fn, side=128, square=False),
    )
    assert one.rounded(x).wide()[1].eq(0).all()
    assert blocks.rounded(x).wide()[0, 1:128].eq(0).all()
    assert torch.equal(blocks.rounded(x).wide()[:, 128:], x[:, 128:])
    assert torch.equal(blocks.rounded(x).wide()[1], x[1])


@pytest.mark.parametrize("name", ["fp8", "fp8_block"])
def test_the_products_of_experts_equal_the_emulation(name: str) -> None:
    """Three experts with 20, 0 and 12 rows. With one scale per tensor all experts share it."""
    torch.manual_seed(4)
    product, ends = (
        ScaledGroupedProduct(FORMATS[name], steps=4, device=CPU),
        torch.tensor([20, 20, 32], dtype=torch.int32),
    )
    x, weight = with_outliers(32, K).requires_grad_(), with_outliers(3, K, M).requires_grad_()
    gradient = with_outliers(32, M)
    out = product(x, weight, ends)
    out.backward(gradient)
    assert weight.grad is not None
    if name == "fp8":
        rows, matrices = E4M3.scaled_round(numbers(x)), E4M3.scaled_round(numbers(weight))
        turned, arrived = rows, E5M2.scaled_round(numbers(gradient))
        columns = arrived
    else:
        rows, matrices = (
            tiled(numbers(x), E4M3, 1, 128),
            np.stack([tiled(each, E4M3, 128, 128) for each in numbers(weight)]),
        )
        turned, arrived = tiled(rows, E4M3, 128, 1), tiled(numbers(gradient), E4M3, 1, 128)
        columns = tiled(numbers(gradient), E4M3, 128, 1)
    for expert, own in enumerate((slice(0, 20), slice(20, 20), slice(20, 32))):
        assert x.grad is not None
        assert_products(
            [
                (out[own], rows[own], matrices[expert]),
                (x.grad[own], arrived[own], matrices[expert].T),
                (weight.grad[expert], turned[own].T, columns[own]),
            ],
            terms=K,
        )


class Products(TorchDispatchMode):
    """Counts matrix products."""

    number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += func is torch.ops.aten.mm.default or func is torch.ops.aten._grouped_mm.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", ["linear", "experts"])
@pytest.mark.parametrize("name", ["fp8", "fp8_block"])
def test_a_split_backward_computes_each_product_once(name: str, kind: str) -> None:
    """I has the gradient of the input, W that of the weight, both to the bit as in a whole backward."""
    torch.manual_seed(5)
    source, ends = torch.randn(32, K), torch.tensor([20, 32], dtype=torch.int32)
    layer = ScaledLinear(nn.Linear(K, M, bias=False), FORMATS[name], steps=4, device=CPU)
    grouped = ScaledGroupedProduct(FORMATS[name], steps=4, device=CPU)
    matrices = torch.randn(2, K, M)

    def run(split: bool) -> tuple[list[int], list[Tensor | None]]:
        x, weight = source.clone().requires_grad_(), nn.Parameter(matrices.clone())
        layer.weight.grad = None
        weights = [layer.weight if kind == "linear" else weight]
        out = layer(x) if kind == "linear" else grouped(x * 1, weight, ends)
        loss, counts = out.float().square().sum(), []
        if split:
            with Products() as in_i:
                _, groups = stage_backward_input([loss], None, [x], iter(weights))
            with Products() as in_w:
                stage_backward_weight(iter(weights), groups)
            counts = [in_i.number, in_w.number]
        else:
            loss.backward()
        return counts, [x.grad, weights[0].grad]

    (_, whole), (counts, gradients) = run(False), run(True)
    assert counts == [1, 1]
    for gradient, expected in zip(gradients, whole, strict=True):
        assert gradient is not None
        assert expected is not None
        assert torch.equal(gradient, expected)
        assert gradient.is_contiguous(), "fused AdamW would read it in another order than the parameter"


def test_fp8_differs_from_exact_products_less_than_the_rounding_of_two_factors() -> None:
    """Half a unit in the last place is 2^-4 of a normal E4M3 number, and 2^-10 / scale below the normal numbers."""
    layer, x = layer_and_input()
    rows, weight = numbers(x.bfloat16()), numbers(layer.weight.bfloat16())
    errors = [2.0**-4 * np.abs(each) + 2.0**-10 / E4M3.scale(float(np.abs(each).max())) for each in (rows, weight)]
    bound = errors[0] @ np.abs(weight.T) + np.abs(rows) @ errors[1].T + errors[0] @ errors[1].T
    exact = rows @ weight.T
    difference = np.abs(numbers(layer(x)) - exact)
    assert (difference <= bound + 2 * BF16_SUM * np.abs(exact) + 1e-6).all()
    assert difference.max() > 2.0**-6 * np.abs(exact).mean()


@pytest.mark.parametrize(("name", "binary"), [("bf16", BF16), ("fp16", FP16)])
def test_autocast_products_equal_the_emulation(name: str, binary: Binary) -> None:
    torch.manual_seed(1)
    x, weight = torch.randn(N, K), torch.randn(M, K)
    with torch.autocast("cpu", dtype=FORMATS[name].compute):
        out = nn.functional.linear(x, weight)
    assert out.dtype == FORMATS[name].compute
    rows, columns = binary.round(numbers(x)), binary.round(numbers(weight)).T
    exact = rows @ columns
    bound = 2.0 ** -(binary.mantissa + 1) * np.abs(exact) + 64 * 2.0**-24 * (np.abs(rows) @ np.abs(columns))
    assert (np.abs(numbers(out) - exact) <= bound).all()


def test_the_product_of_hardware_computes_the_same() -> None:
    """torch has `_scaled_mm` on CPUs too, so its arguments are tried here; on a GPU it has not been run."""
    torch.manual_seed(2)
    a = round_to(torch.randn(N, K), torch.float8_e5m2, torch.tensor(8.0))
    b = round_to(torch.randn(K, M), torch.float8_e4m3fn, torch.tensor(0.5))
    scales = a.scale.reciprocal(), b.scale.reciprocal()
    product = scaled_product(a.values, b.values, scales=scales, dtype=torch.float32)
    torch.testing.assert_close(product, multiply(a, b, dtype=torch.float32), rtol=1e-6, atol=1e-5)


def test_a_rounded_tensor_is_its_values_over_its_scale() -> None:
    assert Rounded(torch.tensor([6.0]), torch.tensor(4.0)).wide().tolist() == [1.5]
