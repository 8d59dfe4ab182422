"""Measured rates take the place of those of data sheets, in the formulas and in the output."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from traincope.errors import UsageError
from traincope.plan.layout.communication import Volume
from traincope.plan.layout.families import HOPPER
from traincope.plan.layout.layout import Layout
from traincope.plan.layout.machine import Algorithm, algorithm_seconds
from traincope.plan.layout.prediction import predict
from traincope.plan.model.flops import step_flops
from traincope.plan.model.precision import Precision
from traincope.plan.model.sources import read_model
from traincope.plan.search.clusters import Cluster, find_accelerator
from traincope.plan.search.explanation import HOST, parts
from traincope.plan.search.question import Question, answer, find
from traincope.plan.search.rates import MeasuredLink, MeasuredRates, network_link, read_preflight
from traincope.plan.search.search import FLASH

H100 = find_accelerator("h100")
LINK = MeasuredLink(latency_seconds=1e-5, bytes_per_second=1e11)
RANK = {"dtype": None, "product_flops_per_second": 4e14, "memory_bytes_per_second": 2e12}


def sweep(axis: str, operation: str, *group: int, latency: float | None, rate: float | None) -> dict[str, object]:
    fit = {"latency_seconds": latency, "bus_bytes_per_second": rate}
    return {"axis": axis, "operation": operation, "ranks": len(group), "groups": [list(group)], **fit}


PREFLIGHT: dict[str, list[Any]] = {
    "hosts": [
        {"host": "a", "ranks": [{**RANK, "rank": 0}]},
        {"host": "b", "ranks": [{**RANK, "rank": 1, "product_flops_per_second": 6e14}, {**RANK, "rank": 2}]},
    ],
    "sweeps": [
        sweep("tp", "all_reduce", 1, 2, latency=2e-5, rate=3e11),
        sweep("dp", "all_reduce", 0, 1, 2, latency=8e-5, rate=4e10),
        sweep("dp", "all_gather", 0, 1, 2, latency=1.0, rate=1.0),
        sweep("pp", "all_reduce", 0, 1, 2, latency=None, rate=None),
    ],
}


def test_a_step_takes_the_measured_rate_of_compute_and_the_time_of_the_host() -> None:
    """Two GPUs of 4e14 FLOP/s with all operations, all-reduces of the gradients of 32 blocks and the ends, and 0.25 s
    of host.
    """
    shape = read_model("llama3-8b", sequence=8192)
    rates = MeasuredRates(source="run", flops_per_second=4e14, holds_pointwise=True, node=LINK, host_seconds=0.25)
    machine = Cluster(accelerator=H100, gpus=2, rates=rates).machine()
    planned = predict(
        shape,
        layout=Layout(dp=2, microbatches=2, zero=0),
        precision=Precision(),
        policy=FLASH,
        machine=machine,
        causal_half=True,
    )
    work = step_flops(shape, batch=4, causal_half=True).model / 2 / 4e14
    assert planned.work_seconds == pytest.approx(work)
    (dp,) = planned.axes
    assert dp.seconds == pytest.approx(33 * 2 * 1e-5 + 2 * shape.parameters / 1e11)
    assert planned.best_seconds == pytest.approx(work + 0.25)
    assert planned.expected_seconds == pytest.approx(work + dp.exposed_seconds + 0.25)
    assert parts(planned)[HOST] == 0.25
    assert sum(parts(planned).values()) == pytest.approx(planned.expected_seconds)


def test_what_is_not_measured_is_that_of_the_data_sheet() -> None:
    usual = Cluster(accelerator=H100, gpus=16).machine()
    machine = Cluster(accelerator=H100, gpus=16, rates=MeasuredRates(source="run", node=LINK)).machine()
    assert (machine.kernels, machine.memory_bytes_per_second) == (HOPPER.kernels, usual.memory_bytes_per_second)
    assert machine.network_bytes_per_second * machine.network_share == pytest.approx(
        usual.network_bytes_per_second * usual.network_share
    )
    assert (machine.node_bytes_per_second, machine.link_share) == (1e11, 1.0)
    assert (machine.node_latency_seconds, machine.network_latency_seconds) == (1e-5, usual.network_latency_seconds)


def test_a_rate_above_the_peak_is_of_another_gpu() -> None:
    rates = MeasuredRates(source="runs/a", flops_per_second=2e15)
    with pytest.raises(UsageError, match=r"runs/a computes 2e\+15 FLOP/s per rank, more than the peak"):
        Cluster(accelerator=H100, gpus=8, rates=rates).machine()


def test_a_preflight_gives_its_medians_and_the_all_reduce_of_its_largest_groups(tmp_path: Path) -> None:
    """Of a ring of n ranks, one step takes 1 / (2 (n - 1)) of the latency.

    The ring over both hosts has two ranks on one: they share its rate, and one of two steps is within the host.
    """
    file = tmp_path / "preflight.json"
    file.write_text(json.dumps(PREFLIGHT))
    rates = read_preflight(file)
    assert (rates.flops_per_second, rates.memory_bytes_per_second) == (4e14, 2e12)
    assert rates.node == MeasuredLink(latency_seconds=1e-5, bytes_per_second=3e11)
    assert rates.network is not None
    assert rates.network.latency_seconds == pytest.approx(3e-5)
    assert (rates.network.bytes_per_second, rates.network.is_lower_bound) == (2e10, True)


@pytest.mark.parametrize(("ranks", "stride"), [(16, 1), (8, 2), (2, 8)])
def test_a_ring_of_a_known_machine_gives_its_links_back(ranks: int, stride: int) -> None:
    """Two hosts of 8 ranks, whose time `algorithm_seconds` computes, by the lines that a preflight fits."""
    machine = replace(Cluster(accelerator=H100, gpus=16).machine(), link_share=1.0, network_share=1.0)

    def ring(ranks: int, stride: int) -> MeasuredLink:
        sizes = (1 << 20, 1 << 28)
        short, long = (
            algorithm_seconds(
                Volume(axis="dp", operation="all_reduce", what="x", ranks=ranks, count=1, num_bytes=size),
                machine=machine,
                span=ranks * stride,
                stride=stride,
            )[Algorithm.RING]
            for size in sizes
        )
        wire = 2 * (ranks - 1) / ranks
        slope = (long - short) / (sizes[1] - sizes[0]) / wire
        return MeasuredLink(
            latency_seconds=(short - slope * wire * sizes[0]) / 2 / (ranks - 1), bytes_per_second=1 / slope
        )

    hosts = [rank * stride // 8 for rank in range(ranks)]
    found = network_link(ring(ranks, stride), hosts, node_latency_seconds=ring(8, 1).latency_seconds)
    assert found.latency_seconds == pytest.approx(machine.network_latency_seconds)
    assert found.bytes_per_second == pytest.approx(machine.network_bytes_per_second)
    assert found.is_lower_bound is (stride < 8)


def test_groups_with_one_rank_per_host_are_taken_before_larger_ones(tmp_path: Path) -> None:
    file = tmp_path / "preflight.json"
    alone = sweep("ep", "all_reduce", 0, 1, latency=1e-4, rate=3e10)
    file.write_text(json.dumps(PREFLIGHT | {"sweeps": [*PREFLIGHT["sweeps"], alone]}))
    assert read_preflight(file).network == MeasuredLink(latency_seconds=5e-5, bytes_per_second=3e10)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "not JSON"),
        ("{}", "it has no 'hosts'; give the output of"),
        ("[]", "give the output of"),
        (json.dumps(PREFLIGHT | {"sweeps": [PREFLIGHT["sweeps"][0] | {"groups": []}]}), "give the output of"),
        (json.dumps(PREFLIGHT).replace("400000000000000.0", '"fast"'), "to float: 'fast'; give the output of"),
    ],
)
def test_any_other_file_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=sentence):
        read_preflight(file)


def test_the_roofline_has_the_limits_of_the_data_sheet() -> None:
    question = Question(model="llama3-8b", seq=8192, gpu="h100", gpus=8, batch=16, tp=2, cp=1, micro_batch=1, top=1)
    rates = MeasuredRates(source="run", flops_per_second=4e14, holds_pointwise=True)
    usual, measured = answer(question, find(question)), answer(question, find(question, rates=rates), rates=rates)
    for name in ("peak_flops", "memory_bytes_per_second"):
        assert usual[name] == measured[name]  # type: ignore[literal-required]
    for name in ("flops", "moved_bytes", "least_seconds"):
        of_usual, of_measured = (
            [each[name] for each in found["ranked"][0]["operators"]]  # type: ignore[literal-required]
            for found in (usual, measured)
        )
        assert of_usual == of_measured
    assert usual["measured"] is None
    assert measured["measured"] == (
        "run: compute 400 TFLOP/s, links by the data sheet in a node, by the data sheet between nodes, host and data "
        "0 ns per step"
    )
