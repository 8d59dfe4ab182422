"""Constants of kernels from their times: known constants are found again, and a real processor's file is used."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from traincope.doctor import kernel_times
from traincope.errors import UsageError
from traincope.plan.layout.kernels import Kernels
from traincope.plan.layout.machine import Machine
from traincope.plan.search.clusters import Cluster, find_accelerator
from traincope.plan.search.kernel_rates import (
    AttentionTime,
    KernelRates,
    ProductTime,
    fitted_kernels,
    read_kernel_rates,
)
from traincope.plan.search.rates import MeasuredRates

KNOWN = Kernels(
    product=0.7,
    depth=256,
    processors=132,
    attention=0.6,
    attention_head=16,
    attention_tokens=512,
    attention_backward=3.0,
    copies=0.65,
    launch_seconds=5e-6,
)


def machine() -> Machine:
    return Cluster(accelerator=find_accelerator("h100"), gpus=8).machine()


def times(kernels: Kernels, on: Machine) -> KernelRates:
    """Times of kernels with these constants."""
    products = []
    for rows, inner, outer in product((2048, 8192), (512, 2048, 8192), (1024, 12288)):
        rate = on.peak_flops * kernels.product_share(rows, inner, outer)
        products.append(ProductTime(rows=rows, inner=inner, outer=outer, seconds=2 * rows * inner * outer / rate))
    attention = []
    for tokens, head in product((512, 2048, 16384), (64, 128)):
        rate = on.peak_flops * kernels.attention_share(tokens, head)
        seconds = 2 * 2 * 16 * head * tokens**2 / rate
        attention.append(
            AttentionTime(
                sequences=2,
                heads=16,
                head=head,
                tokens=tokens,
                seconds=seconds,
                backward_seconds=kernels.attention_backward * seconds,
            )
        )
    assert on.memory_bytes_per_second is not None
    return KernelRates(
        device="a GPU",
        products=tuple(products),
        attention=tuple(attention),
        copied_bytes_per_second=kernels.copies * on.memory_bytes_per_second,
        launch_seconds=kernels.launch_seconds,
    )


def test_known_constants_are_found_again(tmp_path: Path) -> None:
    on, file = machine(), tmp_path / "rates.json"
    file.write_text(json.dumps(times(KNOWN, on).document()))
    rates = read_kernel_rates(file)
    found = MeasuredRates(source="rates.json", kernels=rates).applied(on).kernels
    wanted = replace(
        on.kernels,
        **{
            name: getattr(KNOWN, name)
            for name in (
                "product",
                "depth",
                "attention",
                "attention_head",
                "attention_tokens",
                "attention_backward",
                "copies",
                "launch_seconds",
            )
        },
    )
    for name in wanted.__slots__:
        assert getattr(found, name) == pytest.approx(getattr(wanted, name), rel=1e-6), name


def test_a_rate_above_the_peak_names_the_wrong_gpu() -> None:
    on = machine()
    with pytest.raises(UsageError, match="name it with --gpu"):
        fitted_kernels(times(KNOWN, on), replace(on, peak_flops=on.peak_flops / 2))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "other"}'])
def test_other_files_are_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(UsageError, match="--rates"):
        read_kernel_rates(file)


def test_a_processors_kernels_are_timed_and_read_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in (
        ("ROWS", (2048,)),
        ("INNERS", (1024, 2048)),
        ("OUTERS", (2048,)),
        ("TOKENS", (1024, 2048)),
        ("COPIED_ELEMENTS", 1 << 22),
        ("ENOUGH_SECONDS", 1e-4),
    ):
        monkeypatch.setattr(kernel_times, name, value)
    rates, file = kernel_times.measure_kernels(), tmp_path / "rates.json"
    file.write_text(json.dumps(rates.document()))
    assert read_kernel_rates(file) == rates
    assert [(row.rows, row.inner, row.outer) for row in rates.products] == [(64, 32, 64), (64, 64, 64)]
    assert [(row.tokens, row.head, row.sequences) for row in rates.attention] == [
        (32, 64, 16),
        (32, 128, 16),
        (64, 64, 8),
        (64, 128, 8),
    ]
    found = fitted_kernels(rates, machine())
    assert found.product > 0  # how fast this machine is, no test asserts; made rates hold the fit
    assert found.launch_seconds > 0
