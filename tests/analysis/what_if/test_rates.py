"""Rates of a run: they give its own FLOPs, host and data times back."""

from dataclasses import replace
from pathlib import Path

import pytest

from evaluation.truth.trainings.on_paper import recorded, wired
from evaluation.truth.trainings.workloads import WORKLOADS
from traincope.analysis import analyze, measured_rates
from traincope.analysis.what_if.link_law import link_laws, sent_messages
from traincope.cli.plan.own_plan import read_own_plan
from traincope.errors import UsageError
from traincope.plan.layout.prediction import predict
from traincope.plan.model.precision import Precision
from traincope.plan.search.clusters import Cluster, find_accelerator
from traincope.plan.search.search import FLASH
from traincope.timeline import open_run

ROOT = Path(__file__).parents[3]
SAMPLES, COMMANDS = ROOT / "sample_runs", ROOT / "traincope" / "cli" / "commands"


def test_the_rate_of_compute_gives_the_compute_of_the_run() -> None:
    analysis = analyze(open_run(SAMPLES / "demo"))
    rates = measured_rates(analysis, source="demo")
    steps = sum(int(rank.counted.sum()) for rank in analysis.ledger.ranks)
    compute = ("forward", "backward", "recompute", "optimizer")
    compute_ns = sum(rank.total(term) or 0 for rank in analysis.ledger.ranks for term in compute)
    executed = analysis.utilization.work.executed
    assert executed is not None
    assert rates.flops_per_second == pytest.approx(executed / len(analysis.ledger.ranks) / (compute_ns / steps / 1e9))
    assert rates.holds_pointwise
    assert rates.network is None  # all ranks ran on one host


def test_only_a_processor_has_no_streams() -> None:
    """It has a number of threads, which older records lack."""
    timeline = open_run(SAMPLES / "demo")
    assert measured_rates(analyze(timeline), source="demo").streams
    ranks = tuple(
        replace(each, info=replace(each.info, device={**each.info.device, "threads": 1})) for each in timeline.run.ranks
    )
    threads = replace(timeline, run=replace(timeline.run, ranks=ranks))
    assert not measured_rates(analyze(threads), source="demo").streams


def test_an_axis_between_hosts_gives_the_network_and_not_the_node() -> None:
    """The groups of tp are 0-1, 2-3, ... and have one rank per host, those of fsdp 0-2, 1-3, ... lie within one.

    A ring with one rank per host has the network's rate and latency, whatever the axis within the hosts has.
    """
    timeline = open_run(SAMPLES / "demo-3d")
    ranks = tuple(
        replace(
            each, info=replace(each.info, host=replace(each.info.host, name=f"host {each.rank // 4}-{each.rank % 2}"))
        )
        for each in timeline.run.ranks
    )
    analysis = analyze(replace(timeline, run=replace(timeline.run, ranks=ranks)))
    (law,) = link_laws(sent_messages(analysis.comm, "tp"), ranks=2)
    rates = measured_rates(analysis, source="run")
    assert rates.network is not None
    assert rates.network.bytes_per_second == pytest.approx(1 / law.seconds_per_byte)
    assert rates.network.latency_seconds == pytest.approx(law.latency_seconds)
    assert not rates.network.is_lower_bound
    assert rates.node != rates.network


def test_a_run_without_flops_has_no_rate() -> None:
    (workload,) = (each for each in WORKLOADS if each.name == "ddp: slow link")
    with pytest.raises(UsageError, match="its FLOPs are unknown"):
        measured_rates(analyze(recorded(wired(workload), steps=4)), source="run")


@pytest.mark.parametrize(
    ("name", "config", "missed"),
    [("demo", "demo-4.toml", -0.069), ("demo-3d", "demo-8.toml", -0.275)],
)
def test_the_error_of_the_formula_with_a_runs_own_rates(name: str, config: str, missed: float) -> None:
    """The errors that docs/plan/what-if.md states. `demo-3d` has a straggler and uneven stages, which no formula
    knows.
    """
    analysis = analyze(open_run(SAMPLES / name))
    plan = read_own_plan(COMMANDS / config)
    assert plan.shape is not None
    assert plan.layout is not None
    rates = measured_rates(analysis, source=name)
    cluster = Cluster(accelerator=find_accelerator("h100"), gpus=plan.layout.ranks, rates=rates)
    planned = predict(
        plan.shape,
        layout=plan.layout,
        precision=Precision(weights="fp32", gradients="fp32", activations="fp32"),
        policy=FLASH,
        machine=cluster.machine(),
        causal_half=True,
    )
    assert analysis.critical_path is not None
    recorded_seconds = analysis.critical_path.median_step.wall_ns / 1e9
    assert planned.expected_seconds / recorded_seconds - 1 == pytest.approx(missed, abs=0.005)
