"""Rates of a run: they give its own FLOPs, host and data times back."""

from pathlib import Path

import pytest

from tests.truth.trainings.on_paper import recorded, wired
from tests.truth.trainings.workloads import WORKLOADS
from traincope.analysis import analyze, measured_rates
from traincope.errors import UsageError
from traincope.timeline import open_run

DEMO = Path(__file__).parents[3] / "sample_runs" / "demo"


def test_the_rate_of_compute_gives_the_compute_of_the_run() -> None:
    analysis = analyze(open_run(DEMO))
    rates = measured_rates(analysis, source="demo")
    steps = sum(int(rank.counted.sum()) for rank in analysis.ledger.ranks)
    compute = ("forward", "backward", "recompute", "optimizer")
    compute_ns = sum(rank.total(term) or 0 for rank in analysis.ledger.ranks for term in compute)
    executed = analysis.utilization.work.executed
    assert executed is not None
    assert rates.flops_per_second == pytest.approx(executed / len(analysis.ledger.ranks) / (compute_ns / steps / 1e9))
    assert rates.holds_pointwise
    assert rates.network is None  # all ranks ran on one host


def test_a_run_without_flops_has_no_rate() -> None:
    (workload,) = (each for each in WORKLOADS if each.name == "ddp: slow link")
    with pytest.raises(UsageError, match="its FLOPs are unknown"):
        measured_rates(analyze(recorded(wired(workload), steps=4)), source="run")
