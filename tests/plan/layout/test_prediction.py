"""Predictions from formulas, computed by hand."""

import pytest

from traincope.errors import UsageError
from traincope.plan.layout.activations import ActivationPolicy
from traincope.plan.layout.layout import Layout
from traincope.plan.layout.machine import Machine
from traincope.plan.layout.prediction import predict
from traincope.plan.model.flops import step_flops
from traincope.plan.model.precision import Precision
from traincope.plan.model.transformer import Transformer

SMALL = Transformer(layers=4, hidden=64, heads=4, vocabulary=1000, sequence=128)
MACHINE = Machine(
    peak_flops=1e12,
    memory_bytes=1 << 30,
    ranks_per_node=2,
    node_bytes_per_second=1e9,
    network_bytes_per_second=1e8,
    efficiency=0.5,
)


def test_a_single_rank_reaches_the_efficiency_of_its_kernels() -> None:
    predicted = predict(SMALL, layout=Layout(), precision=Precision(), policy=ActivationPolicy(), machine=MACHINE)
    assert predicted.axis_seconds == {}
    assert predicted.best_mfu == predicted.worst_mfu == pytest.approx(0.5)
    assert predicted.compute_seconds == pytest.approx(step_flops(SMALL, batch=1).model / 0.5e12)
    assert predicted.fits


def test_a_predicted_pipeline_idles_by_its_formula() -> None:
    layout = Layout(pp=4, microbatches=8)
    predicted = predict(SMALL, layout=layout, precision=Precision(), policy=ActivationPolicy(), machine=MACHINE)
    assert predicted.bubble_ratio == pytest.approx(3 / 11)
    assert predicted.best_mfu == pytest.approx(0.5 * 8 / 11)
    # Each of 8 + 3 microbatches' times has its messages.
    assert predicted.worst_seconds == pytest.approx(predicted.compute_seconds + predicted.axis_seconds["pp"] * 11 / 8)


def test_stages_of_unequal_layers_idle_by_their_timetable() -> None:
    """GPipe of 3 layers on 2 ranks, 2 and 1, and 4 microbatches: a layer takes F + B = 3.

    Four F of the first stage take 8. The other stage's last F takes 1 more, and its first B 2. Then the first stage's
    four B take 16. So a step takes 27, in which the two ranks work 4 x 9.
    """
    shape = Transformer(layers=3, hidden=64, heads=4, vocabulary=1000, sequence=128)
    layout = Layout(pp=2, microbatches=4, schedule="gpipe")
    predicted = predict(shape, layout=layout, precision=Precision(), policy=ActivationPolicy(), machine=MACHINE)
    assert predicted.bubble_ratio == pytest.approx(1 - 4 * 9 / (2 * 27))


def test_ranks_of_different_nodes_communicate_over_the_network() -> None:
    near = predict(SMALL, layout=Layout(dp=2), precision=Precision(), policy=ActivationPolicy(), machine=MACHINE)
    far = predict(SMALL, layout=Layout(dp=2, tp=2), precision=Precision(), policy=ActivationPolicy(), machine=MACHINE)
    # Each rank has half as many gradients, at a tenth of the speed.
    assert far.axis_seconds["dp"] == pytest.approx(near.axis_seconds["dp"] * 5, rel=0.01)


def test_a_million_million_layers_are_predicted_without_a_loop_over_layers() -> None:
    """Each layer has 12 x 64 x 64 elements. A stage has half of the layers and one matrix of 64 x 1000."""
    shape = Transformer(layers=10**12, hidden=64, heads=4, vocabulary=1000, sequence=128, untied=True)
    layout = Layout(pp=2, microbatches=2)
    predicted = predict(shape, layout=layout, precision=Precision(), policy=ActivationPolicy(), machine=MACHINE)
    assert [rank.parameters for rank in predicted.memory] == [10**12 // 2 * 12 * 64 * 64 + 64 * 1000] * 2


def test_device_hours_are_step_time_on_all_ranks() -> None:
    predicted = predict(SMALL, layout=Layout(dp=2), precision=Precision(), policy=ActivationPolicy(), machine=MACHINE)
    best, worst = predicted.device_hours(predicted.tokens_per_step * 3600)
    assert (best, worst) == pytest.approx((2 * predicted.best_seconds, 2 * predicted.worst_seconds))


def test_an_impossible_machine_is_refused() -> None:
    with pytest.raises(UsageError, match=r"efficiency is 1\.5; it must lie in"):
        Machine(peak_flops=1, memory_bytes=1, node_bytes_per_second=1, network_bytes_per_second=1, efficiency=1.5)
