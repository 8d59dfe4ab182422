"""Communication by formula, against papers' totals and against recorded trainings of the engine.

The literals of the recorded trainings are those of tests/distributed/recorded/test_axes.py.
"""

from dataclasses import replace

import pytest

from traincope.errors import UsageError
from traincope.plan.layout.communication import Traffic, Volume, host_copies, volumes
from traincope.plan.layout.layout import Layout, Place
from traincope.plan.model.flops import Recompute
from traincope.plan.model.precision import Precision
from traincope.plan.model.transformer import Experts, Latent, Transformer

B, L, H, HEADS, KV_HEADS, D, F, S, V = 16, 4, 32, 4, 2, 8, 80, 16, 260
FLOAT = 4
STREAM = B * S * H * FLOAT
BLOCK = 2 * H * H + 2 * H * KV_HEADS * D + 3 * H * F
FP32 = Precision(weights="fp32", gradients="fp32", activations="fp32")
ENGINE = Transformer(
    layers=L, hidden=H, heads=HEADS, kv_heads=KV_HEADS, ffn=F, gated_mlp=True, untied=True, vocabulary=V, sequence=S
)


def sent(
    layout: Layout, *, shape: Transformer = ENGINE, recompute: Recompute = Recompute.NONE, rank: int = 0
) -> dict[tuple[str, str, str], tuple[int, int]]:
    """(axis, operation, what) -> (count, bytes)."""
    traffic = Traffic(shape=shape, layout=layout, precision=FP32, recompute=recompute)
    return {(v.axis, v.operation, v.what): (v.count, v.num_bytes) for v in volumes(traffic, rank=rank)}


def test_one_rank_sends_nothing() -> None:
    assert sent(Layout(micro_batch=B, microbatches=4)) == {}


@pytest.mark.parametrize(("zero", "psi"), [(0, 2), (1, 2), (2, 2), (3, 3)])
def test_zero_sends_two_or_three_times_the_parameters(zero: int, psi: int) -> None:
    """Section 7 of the paper. A rank of n sends (n - 1) / n of it; weights and gradients have one dtype."""
    layout = Layout(dp=8, zero=zero, micro_batch=2)
    wire = sum(v.wire_bytes for v in volumes(Traffic(shape=ENGINE, layout=layout, precision=Precision())))
    assert wire == psi * 2 * ENGINE.parameters * 7 / 8


def test_each_microbatch_repeats_gathers_and_reductions_of_zero() -> None:
    gradients = {zero: sent(Layout(dp=4, zero=zero, microbatches=5)) for zero in (1, 2, 3)}
    assert [rows["dp", "reduce_scatter", "gradients"][0] for rows in gradients.values()] == [1, 5, 5]
    assert [rows["dp", "all_gather", "weights"][0] for rows in gradients.values()] == [1, 1, 10]


@pytest.mark.parametrize(("zero", "gathers", "reductions"), [(1, 1, 1), (2, 1, 5), (3, 10, 5)])
def test_replicas_of_shards_sum_only_their_shards(zero: int, gathers: int, reductions: int) -> None:
    """Two replicas of 4 shards, 5 microbatches: the sum over replicas has a fourth of the gradients, once per step."""
    weights = (L * BLOCK + 2 * V * H) * FLOAT
    layout = Layout(dp=8, replicas=2, zero=zero, microbatches=5)
    rows = volumes(Traffic(shape=ENGINE, layout=layout, precision=FP32))
    assert [(row.operation, row.what, row.ranks, row.count, row.num_bytes) for row in rows] == [
        ("reduce_scatter", "gradients", 4, reductions, reductions * weights),
        ("all_gather", "weights", 4, gathers, gathers * weights),
        ("all_reduce", "gradients of a shard", 2, 1, weights // 4),
    ]
    sent = 3 / 4 * (reductions + gathers) * weights + 2 * 1 / 2 * weights / 4
    assert sum(row.wire_bytes for row in rows) == sent


def test_replicas_without_shards_sum_whole_gradients() -> None:
    """Shards of one rank send nothing. Stage 0 has no shards."""
    weights = (L * BLOCK + 2 * V * H) * FLOAT
    for zero, what in ((0, "gradients"), (1, "gradients of a shard")):
        assert sent(Layout(dp=4, replicas=4, zero=zero)) == {("dp", "all_reduce", what): (1, weights)}


def test_replicas_of_spread_experts_sum_their_shards() -> None:
    """Two replicas of 4 ranks, 2 of which have the same two experts of each of two blocks."""
    rows = volumes(Traffic(shape=EXPERTS, layout=Layout(dp=8, replicas=2, ep=2, zero=1), precision=FP32))
    expert = 2 * 2 * 2 * H * F * FLOAT
    assert {row.operation: (row.ranks, row.num_bytes) for row in rows if "expert" in row.what} == {
        "reduce_scatter": (2, expert),
        "all_gather": (2, expert),
        "all_reduce": (2, expert // 2),
    }


def test_hsdp_agrees_with_the_recording() -> None:
    """tests/distributed/recorded/test_sharing.py."""
    weights = L * BLOCK + 2 * V * H
    assert sent(Layout(dp=4, replicas=2, zero=3, micro_batch=B // 4)) == {
        ("dp", "all_gather", "weights"): (2, 2 * weights * FLOAT),
        ("dp", "reduce_scatter", "gradients"): (1, weights * FLOAT),
        ("dp", "all_reduce", "gradients of a shard"): (1, weights // 2 * FLOAT),
    }


def test_fsdp_over_context_parallel_ranks_agrees_with_the_recording() -> None:
    weights = L * BLOCK + 2 * V * H
    rows = sent(Layout(cp=2, zero=3, micro_batch=B))
    assert rows["dp", "all_gather", "weights"] == (2, 2 * weights * FLOAT)
    assert rows["dp", "reduce_scatter", "gradients"] == (1, weights * FLOAT)


def test_tensor_and_sequence_parallelism_agree_with_the_recording() -> None:
    """The paper's blocks keep split inputs, so it counts one more gather for each half of a block."""
    assert sent(Layout(tp=2, micro_batch=B)) == {
        ("tp", "all_gather", "activations"): (4 * L + 2, (4 * L + 2) * STREAM),
        ("tp", "reduce_scatter", "activations"): (4 * L + 2, (4 * L + 2) * STREAM),
        ("tp", "all_gather", "inputs again"): (2 * L + 1, (2 * L + 1) * STREAM),
    }


def test_tensor_parallelism_alone_agrees_with_the_recording() -> None:
    assert sent(Layout(tp=2, micro_batch=B, sequence_parallel=False)) == {
        ("tp", "all_reduce", "activations"): (4 * L + 2, (4 * L + 2) * STREAM),
    }


@pytest.mark.parametrize(("recompute", "recomputed"), [(Recompute.SELECTIVE, 0), (Recompute.FULL, 1)])
def test_communication_of_recomputation_agrees_with_the_recording(recompute: Recompute, recomputed: int) -> None:
    rows = sent(Layout(tp=2, micro_batch=B), recompute=recompute)
    assert rows["tp", "all_gather", "activations"][0] == 4 * L + 2 + recomputed * 2 * L
    assert rows["tp", "reduce_scatter", "activations"][0] == 4 * L + 2 + recomputed * L


def test_a_ring_agrees_with_the_recording() -> None:
    hops = 1 + 1 + 2
    keys_and_values = 2 * (B * KV_HEADS * S * D * FLOAT) // 2
    rows = sent(Layout(cp=2, micro_batch=B))
    assert rows["cp", "send", "keys, values"] == (L * hops, L * hops * keys_and_values)
    for recompute in (Recompute.SELECTIVE, Recompute.FULL):
        recomputed = sent(Layout(cp=4, micro_batch=B), recompute=recompute)
        assert recomputed["cp", "send", "keys, values"][0] == L * (3 * 3 + 4)


def test_ulysses_agrees_with_the_recording() -> None:
    token = (2 * HEADS + 2 * KV_HEADS) * D * FLOAT
    rows = sent(Layout(cp=2, micro_batch=B, cp_method="ulysses"))
    assert rows["cp", "all_to_all", "heads"] == (4 * L, 2 * L * token * B * S // 2)


def test_stages_of_context_parallel_ranks_agree_with_the_recording() -> None:
    rows = sent(Layout(pp=2, cp=2, microbatches=4, micro_batch=B // 4))
    assert rows["pp", "send", "activations"] == (4, STREAM // 2)
    assert rows["cp", "send", "keys, values"][0] == 4 * 4 * L // 2


def test_a_middle_stage_sends_both_ways_and_a_v_nothing_at_its_turn() -> None:
    """A loop of 4 ranks and a V of 2, both with four stages. In the V, rank 1 has stages 1 and 2."""
    size = STREAM // B
    loop = [sent(Layout(pp=4, microbatches=B), rank=rank).get(("pp", "send", "activations")) for rank in range(4)]
    assert loop == [(B, B * size), (2 * B, 2 * B * size), (2 * B, 2 * B * size), (B, B * size)]
    vee = [
        sent(Layout(pp=2, microbatches=B, schedule="zb-v"), rank=rank)["pp", "send", "activations"][0]
        for rank in range(2)
    ]
    assert vee == [2 * B, 2 * B]


def test_gradients_of_a_tied_embedding_are_summed_over_first_and_last_stage() -> None:
    tied = Transformer(layers=4, hidden=H, heads=HEADS, vocabulary=V, sequence=S)
    ranks = [sent(Layout(pp=4, microbatches=4), shape=tied, rank=rank) for rank in range(4)]
    once = (1, V * H * FLOAT)
    assert [rows.get(("pp", "all_reduce", "embedding")) for rows in ranks] == [once, None, None, once]
    turned = sent(Layout(pp=2, microbatches=4, schedule="zb-v"), shape=tied)
    assert ("pp", "all_reduce", "embedding") not in turned


EXPERTS = Transformer(
    layers=3, hidden=H, heads=HEADS, vocabulary=V, sequence=S, experts=Experts(count=4, top_k=2, ffn=F, dense_layers=1)
)


def test_shared_experts_add_one_stream() -> None:
    shared = Transformer(
        layers=2, hidden=H, heads=HEADS, vocabulary=V, sequence=S, experts=Experts(count=4, top_k=2, ffn=F, shared=3)
    )
    rows = sent(Layout(tp=2, micro_batch=B), shape=shared)
    assert rows["tp", "all_gather", "activations"][0] == 2 * 2 * (1 + 2 + 1) + 2


@pytest.mark.parametrize(
    ("recompute", "theres", "backs"), [(Recompute.NONE, 2, 2), (Recompute.SELECTIVE, 3, 2), (Recompute.FULL, 3, 3)]
)
def test_attention_that_runs_again_exchanges_heads_again(recompute: Recompute, theres: int, backs: int) -> None:
    """Queries, keys and values are exchanged again; the output only if a later product reads it."""
    rows = sent(Layout(cp=2, cp_method="ulysses", micro_batch=B), recompute=recompute)
    qkv, output = (HEADS + 2 * KV_HEADS) * D * FLOAT, HEADS * D * FLOAT
    assert rows["cp", "all_to_all", "heads"] == ((theres + backs) * L, L * (theres * qkv + backs * output) * B * S // 2)


@pytest.mark.parametrize(("recompute", "passes"), [(Recompute.NONE, 2), (Recompute.SELECTIVE, 2), (Recompute.FULL, 3)])
def test_a_forward_that_runs_again_exchanges_tokens_again(recompute: Recompute, passes: int) -> None:
    rows = sent(Layout(dp=4, ep=4, micro_batch=B), shape=EXPERTS, recompute=recompute)
    assert rows["ep", "all_to_all", "tokens"][0] == passes * 2 * 2


def test_with_sequence_parallelism_a_tp_rank_sends_its_part_to_the_next_stage() -> None:
    parts, whole = (
        sent(Layout(pp=2, tp=2, microbatches=B, sequence_parallel=cut))["pp", "send", "activations"]
        for cut in (True, False)
    )
    assert (parts, whole) == ((B, STREAM // 2), (B, STREAM))


def test_tokens_go_to_their_experts_and_back_in_both_passes() -> None:
    """Tokens x top_k x hidden, to the experts and back, in forward and backward, in each of two blocks."""
    rows = sent(Layout(dp=4, ep=4, micro_batch=B), shape=EXPERTS)
    assert rows["ep", "all_to_all", "tokens"] == (2 * 4, 2 * 4 * 2 * STREAM)


def test_expert_gradients_are_summed_over_ranks_with_the_same_experts() -> None:
    rows = volumes(Traffic(shape=EXPERTS, layout=Layout(dp=4, ep=2, zero=1), precision=FP32))
    groups = {row.what: (row.ranks, row.num_bytes) for row in rows if row.operation == "reduce_scatter"}
    attention, router, expert = 4 * H * H, H * 4, 2 * H * F
    common = (attention + 8 * H * H) + 2 * (attention + router) + V * H
    assert groups == {"gradients": (4, common * FLOAT), "expert gradients": (2, 2 * 2 * expert * FLOAT)}


def test_with_tensor_parallelism_the_tokens_of_experts_are_gathered() -> None:
    """Two streams of one dense block, 1 + top_k in each other block, in both passes; one at each end."""
    rows = sent(Layout(tp=2, dp=2, ep=2, micro_batch=B), shape=EXPERTS)
    streams = 2 * (2 + 2 * 3) + 2
    assert rows["tp", "all_gather", "activations"] == (streams, streams * STREAM)
    assert rows["ep", "all_to_all", "tokens"] == (2 * 4, 2 * 4 * 2 * STREAM // 2)
    with pytest.raises(UsageError, match="experts with tp need sequence parallelism"):
        sent(Layout(tp=2, sequence_parallel=False), shape=EXPERTS)


NARROW = Latent(kv_rank=10, rope=2, value_dim=6, q_rank=5)


def test_a_latent_attention_gathers_its_narrow_vectors() -> None:
    """Of 32 numbers of a token, 5 + 10 + 2 enter each attention, in both passes. Their gradients are summed over tp,
    and those of 32 x 17 weights in each block.
    """
    shape = replace(ENGINE, latent=NARROW)
    rows, narrow = sent(Layout(tp=2, micro_batch=B), shape=shape), STREAM * 17 // 32
    each = (4 * L + 2, (3 * L + 2) * STREAM + L * narrow)
    assert rows["tp", "all_gather", "activations"] == rows["tp", "reduce_scatter", "activations"] == each
    assert rows["tp", "all_gather", "inputs again"] == (2 * L + 1, (L + 1) * STREAM + L * narrow)
    assert rows["tp", "all_reduce", "gradients of whole weights"] == (1, L * H * 17 * FLOAT)
    assert sent(Layout(tp=2, sequence_parallel=False, micro_batch=B), shape=shape) == {
        ("tp", "all_reduce", "activations"): each
    }


def test_context_parallelism_sends_the_keys_and_values_of_a_latent_attention() -> None:
    """4 heads of 8 for queries and keys, of 6 for values."""
    shape = replace(ENGINE, latent=NARROW)
    ring = sent(Layout(cp=2, micro_batch=B), shape=shape)["cp", "send", "keys, values"]
    assert ring[1] == L * B * S // 2 * (32 + 24) * (2 + 2) * FLOAT
    heads = sent(Layout(cp=2, cp_method="ulysses", micro_batch=B), shape=shape)["cp", "all_to_all", "heads"]
    assert heads[1] == L * B * S // 2 * 2 * (32 + 32 + 24 + 24) * FLOAT


def test_wire_bytes_are_those_of_a_ring() -> None:
    reduced = Volume(axis="dp", operation="all_reduce", what="gradients", ranks=8, count=1, num_bytes=800)
    assert reduced.wire_bytes == 2 * 7 / 8 * 800


def test_zeropp_sends_bytes_and_gathers_for_backward_within_a_node() -> None:
    """Weights are gathered as int8 for forward and in whole from 2 ranks for backward; gradients travel as int8.

    `tests/distributed/recorded/test_sharing.py` counts the same operations of the engine.
    """
    weights = L * BLOCK + 2 * V * H
    layout = Layout(dp=4, zero=3, node_ranks=2, quantize_weights=True, quantize_gradients=True, microbatches=3)
    rows = volumes(Traffic(shape=ENGINE, layout=layout, precision=FP32))
    assert [(row.operation, row.what, row.ranks, row.count, row.num_bytes) for row in rows] == [
        ("all_to_all", "gradients", 4, 3, 3 * weights * 65 // 64),
        ("all_gather", "weights of a node", 2, 3, 3 * weights * FLOAT),
        ("all_gather", "weights", 4, 3, 3 * weights * 65 // 64),
    ]


def test_offload_copies_shards_to_and_from_the_cpu() -> None:
    """With weights on the device once per step; with weights on the CPU before each gather, after each reduction."""
    share = (L * BLOCK + 2 * V * H) // 4 * FLOAT

    def copies(**places: Place) -> list[tuple[str, int, int]]:
        layout = Layout(dp=4, zero=3, microbatches=3, **places)  # type: ignore[arg-type]
        rows = host_copies(Traffic(shape=ENGINE, layout=layout, precision=FP32))
        return [(row.what, row.count, row.num_bytes) for row in rows]

    assert copies() == []
    assert copies(optimizer_place=Place.NVME) == [("weights", 1, share), ("gradients", 1, share)]
    assert copies(parameters_place=Place.CPU) == [("weights", 6, 6 * share), ("gradients", 3, 3 * share)]


def test_whole_sums_of_gradients_are_reduced_although_their_state_is_shared() -> None:
    """DeepSpeed's BF16_Optimizer all-reduces 4 bytes of each parameter; ZeRO's stage 1 scatters them."""
    for cast, operation in ((False, "reduce_scatter"), (True, "all_reduce")):
        layout = Layout(dp=4, zero=1, microbatches=2, cast_sums=cast)
        traffic = Traffic(shape=ENGINE, layout=layout, precision=Precision(gradients="fp32"))
        gradients, weights = volumes(traffic)
        assert (gradients.operation, gradients.count) == (operation, 1)
        assert gradients.num_bytes == 4 * ENGINE.parameters
        assert (weights.operation, weights.num_bytes) == ("all_gather", 2 * ENGINE.parameters)
