"""Operators of a block: their FLOPs sum to the model's, and their bytes and times are those on paper."""

from dataclasses import replace

import pytest

from traincope.plan.layout.activations import ActivationPolicy
from traincope.plan.layout.kernels import GAP_SECONDS, uniform
from traincope.plan.layout.layout import Layout
from traincope.plan.layout.machine import Machine
from traincope.plan.layout.operators import Kind, Operator, operators, work
from traincope.plan.model.flops import TRAINING, Recompute, executed_flops, step_flops
from traincope.plan.model.precision import Precision
from traincope.plan.model.sources import PRESETS
from traincope.plan.model.transformer import Latent, Transformer

SMALL = Transformer(layers=2, hidden=64, heads=4, vocabulary=100, sequence=32)
FLASH = ActivationPolicy(flash=True, dropout=False)
SCORES = ActivationPolicy(dropout=False)
MACHINE = Machine(
    peak_flops=1e12,
    memory_bytes=1,
    node_bytes_per_second=1,
    network_bytes_per_second=1,
    memory_bytes_per_second=1e9,
    kernels=uniform(1.0),
)
NO_MEMORY = Machine(
    peak_flops=1e12, memory_bytes=1, node_bytes_per_second=1, network_bytes_per_second=1, kernels=uniform(1.0)
)


def of(shape: Transformer, layout: Layout, policy: ActivationPolicy = FLASH) -> dict[str, Operator]:
    done = operators(shape, layout=layout, precision=Precision(), policy=policy, causal_half=policy.flash)
    return {each.name: each for each in done}


@pytest.mark.parametrize("policy", [FLASH, SCORES], ids=["flash", "scores"])
@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("layout", [Layout(), Layout(tp=4, cp=2, dp=8, ep=8), Layout(tp=2, micro_batch=4)], ids=str)
def test_all_operators_do_the_models_forward(name: str, layout: Layout, policy: ActivationPolicy) -> None:
    shape = PRESETS[name]
    if shape.experts is None:
        layout = Layout(tp=layout.tp, cp=layout.cp, micro_batch=layout.micro_batch)
    done = sum(each.count * each.flops for each in of(shape, layout, policy).values())
    whole = step_flops(shape, batch=layout.micro_batch, causal_half=policy.flash).model / TRAINING
    assert done * layout.tp * layout.cp == pytest.approx(whole, rel=1e-12)


LATENT = Transformer(
    layers=2,
    hidden=64,
    heads=4,
    head_dim=24,
    vocabulary=100,
    sequence=32,
    latent=Latent(kv_rank=16, rope=8, value_dim=20, q_rank=12),
)
"""Queries and keys are 4 x 24 = 96 wide, values 4 x 20 = 80, and all heads share 8 of the keys."""


@pytest.mark.parametrize("policy", [FLASH, SCORES], ids=["flash", "scores"])
@pytest.mark.parametrize("q_rank", [12, None])
def test_a_latent_attention_does_the_models_forward(q_rank: int | None, policy: ActivationPolicy) -> None:
    shape = replace(LATENT, latent=Latent(kv_rank=16, rope=8, value_dim=20, q_rank=q_rank))
    for layout in (Layout(), Layout(tp=4, micro_batch=2), Layout(tp=2, cp=2)):
        done = sum(each.count * each.flops for each in of(shape, layout, policy).values())
        whole = step_flops(shape, batch=layout.micro_batch, causal_half=policy.flash).model / TRAINING
        assert done * layout.tp * layout.cp == pytest.approx(whole, rel=1e-12)


def test_a_latent_attention_makes_queries_keys_and_values_from_narrow_vectors() -> None:
    """32 tokens on 2 ranks of tp, which make the narrow vectors of 16 each. Keys without 4 x 8 and values: 64 + 80."""
    parts = of(LATENT, Layout(tp=2))
    assert parts["latent queries"].flops == 2 * 16 * 64 * 12
    assert parts["queries"].flops == 2 * 32 * 12 * 48
    assert parts["latent keys, values"].flops == 2 * 16 * 64 * (16 + 8)
    assert parts["keys, values"].flops == 2 * 32 * 16 * (64 + 80) / 2
    assert parts["attention"].flops == 2 * 32 * 32 * (96 + 80) / 2 / 2
    assert parts["attention"].moved_bytes == 2 * 32 * (96 + 80 + 96 + 80) / 2
    assert parts["attention output"].flops == 2 * 32 * 40 * 64
    whole = of(LATENT, Layout(tp=2, sequence_parallel=False))
    assert whole["latent queries"].flops == 2 * 32 * 64 * 12


def test_windows_cut_the_flops_of_fused_attention_only() -> None:
    """One block of 32 x 32, one with windows of 8, which leave 24 x 24 out of it."""
    windows = replace(SMALL, windows=(None, 8))
    parts = of(windows, Layout())
    assert parts["attention"].flops == 4 * 32 * 32 * 64 / 2
    assert parts["attention, windows of 8"].flops == 4 * (32 * 32 - 24 * 24) * 64 / 2
    assert (parts["attention"].count, parts["attention, windows of 8"].count) == (1, 1)
    assert of(windows, Layout(), SCORES) == of(SMALL, Layout(), SCORES)


def test_a_product_reads_both_operands_and_writes_its_result() -> None:
    """32 tokens, weights of 64 x 192: 2 x 32 x 64 x 192 FLOPs; 32 x 64 + 64 x 192 + 32 x 192 elements of 2 bytes."""
    first = of(SMALL, Layout())["queries, keys, values"]
    assert (first.kind, first.count) == (Kind.PRODUCT, 2)
    assert (first.flops, first.moved_bytes) == (786_432, 2 * (2_048 + 12_288 + 6_144))


def test_operators_of_the_stream_move_it_a_few_times() -> None:
    """32 x 64 numbers of 2 bytes. Two norms read and write it; two sums read two and write one; tp = 2 halves it."""
    whole, half = of(SMALL, Layout()), of(SMALL, Layout(tp=2))
    stream = 32 * 64 * 2
    assert (whole["norms"].moved_bytes, whole["norms"].backward_bytes) == (4 * stream, 6 * stream)
    assert (whole["residuals"].moved_bytes, whole["residuals"].backward_bytes) == (6 * stream, 6 * stream)
    assert half["norms"].moved_bytes == 2 * stream
    twice = of(SMALL, Layout(), replace(FLASH, two_pass_norms=True))["norms"]
    assert (twice.moved_bytes, twice.backward_bytes) == (4 * stream, 10 * stream)


def test_scores_are_written_and_read_unless_attention_is_fused() -> None:
    """4 heads of 32 x 32 scores of 2 bytes, which a softmax reads and writes; dropout reads and writes them again."""
    scores = 4 * 32 * 32
    softmax = of(SMALL, Layout(), SCORES)["softmax"]
    assert (softmax.moved_bytes, softmax.backward_bytes) == (2 * 2 * scores, 3 * 2 * scores)
    dropped = of(SMALL, Layout(), ActivationPolicy())["softmax"]
    assert (dropped.moved_bytes, dropped.backward_bytes) == (4 * 2 * scores + scores, 5 * 2 * scores + scores)
    assert "softmax" not in of(SMALL, Layout())


def test_biases_of_scores_are_copied_into_the_product_that_adds_to_them() -> None:
    biases = of(SMALL, Layout(), ActivationPolicy(dropout=False, score_biases=True))["biases of scores"]
    assert (biases.moved_bytes, biases.backward_bytes) == (2 * 2 * 4 * 32 * 32, 0)


def test_gradients_of_biases_are_sums_over_tokens() -> None:
    """32 tokens of 3 x 64, 64, 256 and 64 numbers of 2 bytes. tp = 2 halves all of them with sequence parallelism, and
    without it only those of the inner widths.
    """
    names = "queries, keys, values", "attention output", "feed-forward, first", "feed-forward, second"
    numbers = [32 * width * 2 for width in (192, 64, 256, 64)]
    shape = replace(SMALL, biases=True)
    assert [of(shape, Layout())[name].backward_bytes for name in names] == numbers
    assert [of(shape, Layout(tp=2))[name].backward_bytes for name in names] == [each / 2 for each in numbers]
    whole = of(shape, Layout(tp=2, sequence_parallel=False))
    assert [whole[name].backward_bytes for name in names] == [numbers[0] / 2, numbers[1], numbers[2] / 2, numbers[3]]
    assert {of(SMALL, Layout())[name].backward_bytes for name in names} == {0.0}
    more = of(shape, Layout())[names[0]].backward_seconds(MACHINE) - of(SMALL, Layout())[names[0]].backward_seconds(
        MACHINE
    )
    assert more == pytest.approx(numbers[0] / 1e9)


def test_a_host_that_waits_for_each_kernel_leaves_the_device_idle_for_a_launch() -> None:
    norms, kernels = of(SMALL, Layout())["norms"], replace(uniform(1.0), launches=True, launch_seconds=1e-3)
    waiting = replace(MACHINE, kernels=kernels, blocking_launches=True)
    assert norms.forward_seconds(waiting) == pytest.approx(norms.least_seconds(MACHINE) + 2 * 1e-3)
    ahead = replace(waiting, blocking_launches=False)
    assert norms.forward_seconds(ahead) == pytest.approx(norms.least_seconds(MACHINE) + 2 * GAP_SECONDS)


def test_the_slower_limit_bounds_the_time() -> None:
    """786,432 FLOPs and 40,960 bytes: 786 us at 1 GFLOP/s, 41 us at 1 GB/s."""
    first = of(SMALL, Layout())["queries, keys, values"]
    rates = {"memory_bytes": 1, "node_bytes_per_second": 1, "network_bytes_per_second": 1}
    slow_compute = Machine(peak_flops=1e9, memory_bytes_per_second=1e9, **rates)
    slow_memory = Machine(peak_flops=1e12, memory_bytes_per_second=1e9, **rates)
    assert first.least_seconds(slow_compute) == pytest.approx(786.432e-6)
    assert first.least_seconds(slow_memory) == pytest.approx(40.96e-6)


def test_kernels_that_reach_the_limits_take_the_least_time_and_backward_twice_that() -> None:
    for each in of(SMALL, Layout(), SCORES).values():
        assert each.forward_seconds(MACHINE) == pytest.approx(each.least_seconds(MACHINE))
        if each.kind is Kind.PRODUCT:
            assert each.backward_seconds(MACHINE) == pytest.approx(2 * each.least_seconds(MACHINE))


@pytest.mark.parametrize("recompute", Recompute)
@pytest.mark.parametrize("policy", [FLASH, SCORES], ids=["flash", "scores"])
def test_work_at_peak_takes_the_executed_flops(recompute: Recompute, policy: ActivationPolicy) -> None:
    """Recomputation that stops early leaves out the last product of each of two blocks, 2 x 32 x 256 x 64 FLOPs."""
    executed = executed_flops(SMALL, batch=1, recompute=recompute, causal_half=policy.flash)
    for early in (False, True):
        kept = ActivationPolicy(flash=policy.flash, dropout=False, recompute=recompute, early_stop=early)
        one = work(
            SMALL,
            layout=Layout(),
            precision=Precision(),
            policy=kept,
            machine=NO_MEMORY,
            causal_half=policy.flash,
        )
        left_out = 2 * 2 * 32 * 256 * 64 if early and recompute is Recompute.FULL else 0
        assert one.total == pytest.approx((executed - left_out) / 1e12)
        assert (one.memory, one.again_memory) == (0, 0)
