"""Operators of a block: their FLOPs sum to the model's, and their bytes are those on paper."""

import pytest

from traincope.plan.layout.layout import Layout
from traincope.plan.layout.machine import Machine
from traincope.plan.layout.roofline import operators
from traincope.plan.model.flops import TRAINING, step_flops
from traincope.plan.model.precision import Precision
from traincope.plan.model.sources import PRESETS
from traincope.plan.model.transformer import Transformer

SMALL = Transformer(layers=2, hidden=64, heads=4, vocabulary=100, sequence=32)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("layout", [Layout(), Layout(tp=4, cp=2, dp=8, ep=8), Layout(tp=2, micro_batch=4)], ids=str)
def test_all_operators_do_the_models_forward(name: str, layout: Layout) -> None:
    shape = PRESETS[name]
    if shape.experts is None:
        layout = Layout(tp=layout.tp, cp=layout.cp, micro_batch=layout.micro_batch)
    done = sum(each.count * each.flops for each in operators(shape, layout=layout, precision=Precision()))
    whole = step_flops(shape, batch=layout.micro_batch, causal_half=True).model / TRAINING
    assert done * layout.tp * layout.cp == pytest.approx(whole, rel=1e-12)


def test_a_product_reads_both_operands_and_writes_its_result() -> None:
    """32 tokens, weights of 64 x 192: 2 x 32 x 64 x 192 FLOPs; 32 x 64 + 64 x 192 + 32 x 192 elements of 2 bytes."""
    first = operators(SMALL, layout=Layout(), precision=Precision())[0]
    assert (first.name, first.count) == ("queries, keys, values", 2)
    assert (first.flops, first.moved_bytes) == (786_432, 2 * (2_048 + 12_288 + 6_144))


def test_the_slower_limit_bounds_the_time() -> None:
    """786,432 FLOPs and 40,960 bytes: 786 us at 1 GFLOP/s, 41 us at 1 GB/s."""
    first = operators(SMALL, layout=Layout(), precision=Precision())[0]
    machine = {"memory_bytes": 1, "node_bytes_per_second": 1, "network_bytes_per_second": 1}
    slow_compute = Machine(peak_flops=1e9, memory_bytes_per_second=1e9, **machine)
    slow_memory = Machine(peak_flops=1e12, memory_bytes_per_second=1e9, **machine)
    assert first.least_seconds(slow_compute) == pytest.approx(786.432e-6)
    assert first.least_seconds(slow_memory) == pytest.approx(40.96e-6)
