"""Predictions from formulas, computed by hand."""

import itertools
from dataclasses import replace

import pytest

from traincope.plan.layout.activations import ActivationPolicy
from traincope.plan.layout.kernels import LAUNCH_SECONDS, STREAMING, Kernels, uniform
from traincope.plan.layout.layout import Layout, Overlap
from traincope.plan.layout.machine import Machine
from traincope.plan.layout.prediction import exact_bubble, least_bubble, predict
from traincope.plan.model.flops import Recompute, step_flops
from traincope.plan.model.precision import DTYPES, Precision
from traincope.plan.model.transformer import Transformer
from traincope.plan.pipeline.orders import SCHEDULES
from traincope.plan.pipeline.orders import Shape as PipelineShape

SMALL = Transformer(layers=4, hidden=64, heads=4, vocabulary=1000, sequence=128)
MACHINE = Machine(
    peak_flops=1e12,
    memory_bytes=1 << 30,
    ranks_per_node=2,
    node_bytes_per_second=1e9,
    network_bytes_per_second=1e8,
    kernels=uniform(0.5),
)


def test_a_single_rank_reaches_the_efficiency_of_its_kernels() -> None:
    predicted = predict(SMALL, layout=Layout(), precision=Precision(), policy=ActivationPolicy(), machine=MACHINE)
    assert predicted.axis_seconds == {}
    assert predicted.expected_mfu == pytest.approx(0.5)
    assert predicted.compute_seconds == pytest.approx(step_flops(SMALL, batch=1).model / 0.5e12)
    assert predicted.fits


def test_a_predicted_pipeline_idles_by_its_formula() -> None:
    layout = Layout(pp=4, microbatches=8)
    predicted = predict(SMALL, layout=layout, precision=Precision(), policy=ActivationPolicy(), machine=MACHINE)
    assert predicted.bubble_ratio == pytest.approx(3 / 11)
    work = predicted.best_seconds - predicted.ends_seconds
    assert predicted.ideal_seconds / work == pytest.approx(0.5 * 8 / 11)
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


def test_shards_stay_in_a_node_and_their_replicas_lie_on_others() -> None:
    """Two nodes with one replica each: two gathers and a reduction at 1 GB/s, a shard's all-reduce at 0.1 GB/s."""
    layout = Layout(dp=4, replicas=2, zero=3)
    predicted = predict(SMALL, layout=layout, precision=Precision(), policy=ActivationPolicy(), machine=MACHINE)
    weights = 2 * SMALL.parameters
    seconds = 3 * 1 / 2 * weights / 1e9 + 2 * 1 / 2 * weights / 2 / 1e8
    assert predicted.axis_seconds == {"dp": pytest.approx(seconds)}


def test_a_million_million_layers_are_predicted_without_a_loop_over_layers() -> None:
    """Each layer has 12 x 64 x 64 elements. A stage has half of the layers and one matrix of 64 x 1000."""
    shape = Transformer(layers=10**12, hidden=64, heads=4, vocabulary=1000, sequence=128, untied=True)
    layout = Layout(pp=2, microbatches=2)
    predicted = predict(shape, layout=layout, precision=Precision(), policy=ActivationPolicy(), machine=MACHINE)
    assert [rank.parameters for rank in predicted.memory] == [10**12 // 2 * 12 * 64 * 64 + 64 * 1000] * 2


def test_selective_recomputation_repeats_one_forward_of_attention() -> None:
    """A third of what equation 8 of Korthikanti et al. 2022 adds, which counts attention's backward too."""
    none, selective = (
        predict(
            SMALL,
            layout=Layout(),
            precision=Precision(),
            policy=ActivationPolicy().with_recompute(recompute),
            machine=MACHINE,
        )
        for recompute in (Recompute.NONE, Recompute.SELECTIVE)
    )
    forward = 4 * 4 * 128**2 * 64 / 0.5e12
    assert selective.kernel_seconds - none.kernel_seconds == pytest.approx(forward)
    assert selective.recompute_seconds == pytest.approx(forward)
    printed = step_flops(SMALL, batch=1, recompute=Recompute.SELECTIVE)
    assert (printed.hardware - printed.model) / 0.5e12 == pytest.approx(3 * forward)


def test_a_tied_embedding_is_summed_over_the_ends_of_the_pipeline() -> None:
    """Rank 0 and rank 3 are on different nodes of two ranks: 2 x 1 / 2 of 4 bytes of 64,000 at 0.1 GB/s."""
    tied, untied = (
        predict(
            replace(SMALL, untied=each),
            layout=Layout(pp=4, microbatches=4),
            precision=Precision(),
            policy=ActivationPolicy(),
            machine=MACHINE,
        )
        for each in (False, True)
    )
    more = tied.axis_seconds["pp"] - untied.axis_seconds["pp"]
    gradients = 64_000 * DTYPES[Precision().gradients]
    stream = 4 * 128 * 64 * 2 / 1e8
    # The rank that sends most is an inner one with two neighbours, or an end with one neighbour and the embedding.
    assert more == pytest.approx(max(gradients / 1e8 - stream, 0))


def test_device_hours_are_step_time_on_all_ranks() -> None:
    predicted = predict(SMALL, layout=Layout(dp=2), precision=Precision(), policy=ActivationPolicy(), machine=MACHINE)
    hours = predicted.device_hours(predicted.tokens_per_step * 3600)
    assert hours == pytest.approx(2 * predicted.expected_seconds)


def test_without_streams_nothing_hides_the_messages_of_shards() -> None:
    """FSDP on a CPU waits for each; gradients of replicas still travel during backward."""
    for zero, hidden in ((0, True), (1, True), (2, False), (3, False)):
        layout = Layout(dp=2, zero=zero, microbatches=4, micro_batch=8)
        streams, none = (
            predict(SMALL, layout=layout, precision=Precision(), policy=ActivationPolicy(), machine=machine).axes[0]
            for machine in (MACHINE, replace(MACHINE, streams=False))
        )
        assert none.exposed_seconds == (streams.exposed_seconds if hidden else none.seconds)
        assert streams.exposed_seconds < streams.seconds


def test_without_streams_nothing_hides_the_messages_of_a_ring() -> None:
    """Attention hides them on a GPU. The cores of a processor compute, and the ring's gradients are waited for."""
    streams, none = (
        next(
            axis
            for axis in predict(
                SMALL, layout=Layout(cp=2), precision=Precision(), policy=ActivationPolicy(), machine=machine
            ).axes
            if axis.axis == "cp"
        )
        for machine in (MACHINE, replace(MACHINE, streams=False))
    )
    assert none.exposed_seconds == none.seconds == streams.seconds
    assert streams.exposed_seconds < streams.seconds


def test_the_expected_step_exposes_what_nothing_hides() -> None:
    """tp's forward sums are exposed; dp's gradients hide behind two thirds of the last of four microbatches."""
    layout = Layout(dp=2, tp=2, microbatches=4, sequence_parallel=False)
    fast = replace(MACHINE, ranks_per_node=4)
    predicted = predict(SMALL, layout=layout, precision=Precision(), policy=ActivationPolicy(), machine=fast)
    axes = {each.axis: each for each in predicted.axes}
    hidden = predicted.work_seconds * 2 / 3 / 4
    assert axes["tp"].exposed_seconds == axes["tp"].seconds / 2
    assert axes["dp"].exposed_seconds == pytest.approx(max(axes["dp"].seconds - hidden, 0))
    exposed = axes["tp"].exposed_seconds + axes["dp"].exposed_seconds
    assert predicted.expected_seconds == pytest.approx(predicted.work_seconds + exposed)
    assert predicted.best_seconds <= predicted.expected_seconds <= predicted.worst_seconds


def test_a_host_that_launches_slower_than_kernels_run_delays_them() -> None:
    """A block has 9 operators: its norms and residuals are two kernels each; five products have two gradients each.

    Forward has 12 kernels in a block without scores, backward 18 and three of attention; the ends have 6 and 7.
    """
    kernels = Kernels(product=1.0, attention=1.0)
    fast = replace(MACHINE, peak_flops=1e18, kernels=kernels)
    policy = ActivationPolicy(flash=True, dropout=False)
    predicted = predict(SMALL, layout=Layout(), precision=Precision(), policy=policy, machine=fast)
    launches = 4 * (11 + 19) + 6 + 7
    assert predicted.work_seconds == pytest.approx(launches * LAUNCH_SECONDS)


def test_copies_and_the_optimizer_move_the_parameters_at_the_rate_of_long_copies() -> None:
    """44 bytes per parameter of a shard for AdamW. FSDP copies 4 for each gather and 8 for each reduction; unfused sums
    of 16 bits move 6 from the second microbatch on.
    """
    machine = replace(MACHINE, memory_bytes_per_second=1e9)
    rate, numbers = 0.87 * 1e9, SMALL.parameters
    for layout, copied, shards in (
        (Layout(dp=2, zero=3, microbatches=4), 4 * (2 * 4 + 8), 2),
        (Layout(dp=2, zero=2, microbatches=4), 4 + 4 * 8, 2),
        (Layout(dp=2, microbatches=4), 0, 1),
        (Layout(dp=2, microbatches=4, fused_sums=False), 3 * 6, 1),
    ):
        predicted = predict(SMALL, layout=layout, precision=Precision(), policy=ActivationPolicy(), machine=machine)
        assert predicted.copy_seconds == pytest.approx(copied * numbers / rate)
        assert predicted.optimizer_seconds == pytest.approx(44 * numbers / shards / rate)


def test_stages_wait_for_the_logits() -> None:
    """Two stages of two blocks: the last also has the logits, of which each rank's mean has half."""
    layout = Layout(pp=2, microbatches=4)
    predicted = predict(SMALL, layout=layout, precision=Precision(), policy=ActivationPolicy(), machine=MACHINE)
    logits = 3 * 2 * 128 * 64 * 1000 / 0.5e12
    assert predicted.ends_seconds == pytest.approx(4 * logits / 2)
    # Of three blocks, the first stage has two: as much as a block and less logits than a block.
    uneven = predict(
        replace(SMALL, layers=3, vocabulary=10),
        layout=layout,
        precision=Precision(),
        policy=ActivationPolicy(),
        machine=MACHINE,
    )
    assert uneven.ends_seconds == 0


def test_collectives_run_next_to_kernels_as_the_layout_says() -> None:
    """Of 18 gathers and 18 reductions of tp and 9 gathers of inputs again, backward hides 9 reductions and the last 9.

    Pieces next to products leave `unhidden` of the others exposed; without any overlap all gradients are.
    """
    machine = replace(MACHINE, ranks_per_node=4, kernels=replace(uniform(0.5), unhidden=0.25))
    axes = {
        overlap: {
            each.axis: each.exposed_seconds / each.seconds
            for each in predict(
                SMALL,
                layout=Layout(dp=2, tp=2, micro_batch=64, overlap=overlap),
                precision=Precision(),
                policy=ActivationPolicy(),
                machine=machine,
            ).axes
        }
        for overlap in Overlap
    }
    assert axes[Overlap.NONE] == {"dp": 1, "tp": 1}
    dp = axes[Overlap.DATA]["dp"]
    assert axes[Overlap.DATA] == {"dp": dp, "tp": 1}
    assert axes[Overlap.GRADIENTS] == {"dp": dp, "tp": pytest.approx(27 / 45)}
    assert axes[Overlap.ALL] == {"dp": dp, "tp": pytest.approx(0.25 * 27 / 45)}
    assert dp < 1
    waiting = predict(
        SMALL,
        layout=Layout(tp=2),
        precision=Precision(),
        policy=ActivationPolicy(),
        machine=replace(machine, streams=False),
    ).axes[0]
    assert waiting.exposed_seconds == waiting.seconds


def test_hidden_collectives_delay_the_work_by_their_contention() -> None:
    busy = replace(MACHINE, kernels=replace(uniform(0.5), contention=0.25))
    layout = Layout(dp=2, zero=3, micro_batch=64)
    free, delayed = (
        predict(SMALL, layout=layout, precision=Precision(), policy=ActivationPolicy(), machine=machine).axes[0]
        for machine in (MACHINE, busy)
    )
    hidden = free.seconds - free.exposed_seconds
    assert hidden > 0
    assert delayed.exposed_seconds == pytest.approx(free.exposed_seconds + 0.25 * hidden)


def test_the_first_gather_and_the_last_reduction_of_blocks_are_exposed() -> None:
    """Four blocks and the ends make five units: a gather of one in forward, and a reduction of one in backward."""
    layout = Layout(dp=2, zero=3, micro_batch=4096)
    (dp,) = predict(SMALL, layout=layout, precision=Precision(), policy=ActivationPolicy(), machine=MACHINE).axes
    one_pass = 2 * SMALL.parameters / 2 / 1e9
    assert dp.seconds == pytest.approx(3 * one_pass)
    assert dp.exposed_seconds == pytest.approx((1 + 1) * one_pass / 5)


def test_scattered_messages_are_gathered_by_tp() -> None:
    """Half of a stream per rank and message; the received stream is gathered at 1 GB/s."""
    layout = Layout(tp=2, pp=2, microbatches=2, sequence_parallel=False)
    whole, pieces = (
        predict(SMALL, layout=each, precision=Precision(), policy=ActivationPolicy(), machine=MACHINE).axis_seconds
        for each in (layout, replace(layout, scatter_gather=True))
    )
    stream = 128 * 64 * 2
    assert whole["pp"] - pieces["pp"] == pytest.approx(2 * stream / 2 / 1e8)
    assert pieces["tp"] - whole["tp"] == pytest.approx(2 * stream / 2 / 1e9)


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zb-1p", "zb-v"])
def test_the_least_bubble_is_a_lower_bound(schedule: str) -> None:
    """Also of stages with unequal numbers of layers. Ticks of a timetable round to 1e-6."""
    for ranks, microbatches in itertools.product((2, 3, 4), (2, 4, 6, 8)):
        chunks = SCHEDULES[schedule].min_chunks
        if SCHEDULES[schedule].refusal(PipelineShape(ranks=ranks, microbatches=microbatches, chunks=chunks)):
            continue
        layout = Layout(pp=ranks, microbatches=microbatches, schedule=schedule)
        for layers in range(ranks * chunks, 2 * ranks * chunks + 1):
            shape = replace(SMALL, layers=layers)
            assert least_bubble(shape, layout=layout) <= exact_bubble(shape, layout=layout) + 1e-6


def test_gradients_that_are_cast_and_added_take_bytes_of_their_own() -> None:
    """Read 2 and 4, written 4; with a cast 4 are written and read again. The cast gradients also count the first."""
    machine = replace(MACHINE, memory_bytes_per_second=1e9)
    seconds = SMALL.parameters / (1e9 * STREAMING)
    for settings, gradients, accesses in (
        ({"fused_sums": True}, "fp32", 0),
        ({"fused_sums": False}, "fp32", 10 * 3),
        ({"fused_sums": False}, "bf16", 6 * 3),
        ({"cast_sums": True}, "fp32", 18 * 4),
    ):
        predicted = predict(
            SMALL,
            layout=Layout(microbatches=4, **settings),
            precision=Precision(gradients=gradients),
            policy=ActivationPolicy(),
            machine=machine,
        )
        assert predicted.copy_seconds == pytest.approx(accesses * seconds)


def test_a_scaled_loss_needs_more_passes_over_gradients() -> None:
    machine = replace(MACHINE, memory_bytes_per_second=1e9)
    times = [
        predict(
            SMALL,
            layout=Layout(),
            precision=Precision(activations=numbers),
            policy=ActivationPolicy(),
            machine=machine,
        ).optimizer_seconds
        for numbers in ("bf16", "fp16")
    ]
    assert times[1] / times[0] == pytest.approx(58 / 44)
