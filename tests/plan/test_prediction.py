"""Predictions from formulas, worked out by hand."""

import pytest

from traincope.errors import UsageError
from traincope.plan.activations import Keeping
from traincope.plan.flops import step_flops
from traincope.plan.layout import Layout
from traincope.plan.precision import Precision
from traincope.plan.prediction import Machine, predict
from traincope.plan.transformer import Transformer

SMALL = Transformer(layers=4, hidden=64, heads=4, vocabulary=1000, sequence=128)
MACHINE = Machine(
    peak_flops=1e12,
    memory_bytes=1 << 30,
    ranks_per_node=2,
    node_bytes_per_second=1e9,
    network_bytes_per_second=1e8,
    efficiency=0.5,
)


def test_one_rank_alone_reaches_the_share_of_peak_that_its_kernels_do() -> None:
    found = predict(SMALL, layout=Layout(), precision=Precision(), keeping=Keeping(), machine=MACHINE)
    assert found.axis_seconds == {}
    assert found.best_mfu == found.worst_mfu == pytest.approx(0.5)
    assert found.compute_seconds == pytest.approx(step_flops(SMALL, batch=1).model / 0.5e12)
    assert found.fits


def test_a_pipeline_idles_as_its_formula_says() -> None:
    layout = Layout(pp=4, microbatches=8)
    found = predict(SMALL, layout=layout, precision=Precision(), keeping=Keeping(), machine=MACHINE)
    assert found.bubble_ratio == pytest.approx(3 / 11)
    assert found.best_mfu == pytest.approx(0.5 * 8 / 11)
    assert found.worst_seconds == pytest.approx(found.compute_seconds + found.axis_seconds["pp"])


def test_ranks_beyond_a_node_talk_over_the_network() -> None:
    near = predict(SMALL, layout=Layout(dp=2), precision=Precision(), keeping=Keeping(), machine=MACHINE)
    far = predict(SMALL, layout=Layout(dp=2, tp=2), precision=Precision(), keeping=Keeping(), machine=MACHINE)
    # Of each rank half as many gradients, at a tenth of the speed.
    assert far.axis_seconds["dp"] == pytest.approx(near.axis_seconds["dp"] * 5, rel=0.01)


def test_of_a_million_million_layers_none_is_counted_by_itself() -> None:
    """Each has 12 x 64 x 64 elements; a stage has half of them, and one matrix of 64 x 1000 at its end."""
    shape = Transformer(layers=10**12, hidden=64, heads=4, vocabulary=1000, sequence=128, untied=True)
    layout = Layout(pp=2, microbatches=2)
    found = predict(shape, layout=layout, precision=Precision(), keeping=Keeping(), machine=MACHINE)
    assert [rank.parameters for rank in found.memory] == [10**12 // 2 * 12 * 64 * 64 + 64 * 1000] * 2


def test_what_it_costs_is_its_time_on_all_ranks() -> None:
    found = predict(SMALL, layout=Layout(dp=2), precision=Precision(), keeping=Keeping(), machine=MACHINE)
    best, worst = found.device_hours(found.tokens_per_step * 3600)
    assert (best, worst) == pytest.approx((2 * found.best_seconds, 2 * found.worst_seconds))


def test_a_machine_that_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match=r"efficiency = 1\.5 must lie in"):
        Machine(peak_flops=1, memory_bytes=1, node_bytes_per_second=1, network_bytes_per_second=1, efficiency=1.5)
