"""Forward and backward below peak: when this is a finding, and what it advises."""

from dataclasses import replace

import pytest

from traincope.analysis.efficiency.utilization import Ratios
from traincope.analysis.kernels.kernels import ClassTime, Family, Kernels, Source
from traincope.analysis.kernels.time_at_peak import Rated
from traincope.analysis.verdict.losses.kernel_losses import FEWER, LARGER, TRACE, kernels_below_peak

H100 = {"ideal": 0.337, "redundant_compute": 0.003, "kernel_inefficiency": 0.5, "launch_gap": 0.16}
"""Shares of step time that a DDP training on an H100 showed."""


def kernels(*, products_ms: int, of_peak: float, others_ms: int, source: Source = Source.DEVICE) -> Kernels:
    """The kernels of collectives are longer than all others, and say nothing about these."""
    rated = Rated(took_ns=products_ms * 10**6, ideal_ns=of_peak * products_ms * 10**6)
    product = ClassTime(
        name="gemm", family=Family.COMPUTE, count=1, total_ns=products_ms * 10**6, fused_ns=0, rated=rated
    )
    other = replace(product, name="elementwise", total_ns=others_ms * 10**6, rated=None)
    hidden = replace(other, name="nccl all-reduce", family=Family.COMMUNICATION, total_ns=150 * 10**6)
    classes = hidden, product, other
    return Kernels(source=source, ranks=(0,), steps=(3,), num_traces=1, classes=classes, longest=(), overlap=None)


def test_without_a_trace_the_kernels_are_unknown() -> None:
    (finding,) = kernels_below_peak(Ratios(waterfall=H100), None, by_marks=True)
    assert finding.evidence == (
        "forward and backward reach 40.5 % of peak: 50.0 % of step time is that of kernels below peak or of gaps "
        "between them"
    )
    assert finding.advice == f"{TRACE}."
    assert finding.estimated_gain_ratio is None


@pytest.mark.parametrize(
    ("traced", "advice"),
    [
        (kernels(products_ms=54, of_peak=0.724, others_ms=46), FEWER),
        (kernels(products_ms=90, of_peak=0.4, others_ms=10), LARGER),
    ],
)
def test_traced_kernels_decide_the_advice(traced: Kernels, advice: str) -> None:
    (finding,) = kernels_below_peak(Ratios(waterfall=H100), traced, by_marks=True)
    assert finding.advice == f"{advice}."
    assert "gaps" not in finding.evidence
    assert finding.evidence.endswith("of peak; the rest is mostly elementwise")


def test_operators_of_the_host_are_no_kernels() -> None:
    traced = kernels(products_ms=54, of_peak=0.724, others_ms=46, source=Source.HOST)
    (finding,) = kernels_below_peak(Ratios(waterfall=H100), traced, by_marks=True)
    assert finding.advice == f"{TRACE}."


@pytest.mark.parametrize(
    "waterfall",
    [
        None,
        H100 | {"ideal": None},
        H100 | {"ideal": 0.5, "kernel_inefficiency": 0.4},
        H100 | {"ideal": 0.02, "kernel_inefficiency": 0.04},
    ],
    ids=["unknown peak", "unknown FLOPs", "half of peak", "little compute"],
)
def test_no_finding(waterfall: dict[str, float | None] | None) -> None:
    assert not list(kernels_below_peak(Ratios(waterfall=waterfall), None, by_marks=False))
