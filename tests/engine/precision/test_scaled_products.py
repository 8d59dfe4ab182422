"""Products equal an independent emulation in float64, and differ from exact ones less than theory says."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.engine.precision.emulated import BF16, E4M3, E5M2, FP16, Binary, Numbers
from traincope.engine.precision.formats import FORMATS
from traincope.engine.precision.scaled_products import ScaledLinear, multiply
from traincope.engine.precision.scales import Rounded, round_to
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
