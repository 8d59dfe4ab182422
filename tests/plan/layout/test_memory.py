"""Memory per rank of a small model with matrices counted by hand. test_published.py has ZeRO's numbers."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincope.errors import UsageError
from traincope.plan.layout.activations import ActivationPolicy, block_bytes, logits_bytes, scores_bytes, stage_bytes
from traincope.plan.layout.layout import Layout, Place
from traincope.plan.layout.memory import Elements, elements, max_held, memory, off_device, states
from traincope.plan.model.precision import Precision, States, model_states
from traincope.plan.model.transformer import Experts, Latent, Transformer
from traincope.plan.pipeline.orders import SCHEDULES, orders


@pytest.mark.parametrize(
    ("precision", "states"),
    [
        (Precision(), (2, 2, 12)),
        (Precision(gradients="fp32"), (2, 4, 12)),
        (Precision(weights="fp32", gradients="fp32"), (4, 4, 8)),
        (Precision(states="int8"), (2, 2, 6)),
        (Precision(states="bf16", master=False), (2, 2, 4)),
        (Precision(optimizer="sgd", weights="fp32", gradients="fp32"), (4, 4, 0)),
        (Precision(optimizer="muon"), (2, 2, 8)),
    ],
)
def test_bytes_of_a_parameter(precision: Precision, states: tuple[int, int, int]) -> None:
    weights, gradients, optimizer = states
    assert model_states(1, precision=precision) == States(weights=weights, gradients=gradients, optimizer=optimizer)


@given(parameters=st.integers(1, 10**12), shards=st.integers(1, 1024), zero=st.integers(0, 3))
def test_shards_sum_to_the_whole_with_less_than_a_byte_of_rounding_each(
    parameters: int, shards: int, zero: int
) -> None:
    whole = model_states(parameters, precision=Precision())
    share = model_states(parameters, precision=Precision(), zero=zero, shards=shards)
    for stage, name in ((3, "weights"), (2, "gradients"), (1, "optimizer")):
        parts = shards if zero >= stage else 1
        assert 0 <= getattr(share, name) * parts - getattr(whole, name) < parts


SMALL = Transformer(layers=5, hidden=8, heads=2, vocabulary=10, sequence=4)
"""A block's matrices have 12 x 64 = 768 elements, the embedding 80."""


def test_stages_share_blocks_and_a_tied_embedding_lies_at_both_ends() -> None:
    layout = Layout(pp=2, tp=2, microbatches=4)
    assert [elements(SMALL, layout=layout, rank=rank) for rank in (0, 1)] == [
        Elements(common=(3 * 768 + 80) // 2, experts=0),
        Elements(common=(2 * 768 + 80) // 2, experts=0),
    ]


def test_ranks_of_tp_hold_whole_what_makes_narrow_vectors() -> None:
    """Hidden 8, two heads of 6 (2 of them shared positions) and values of 5, from vectors of 3 and 4.

    Whole: 8 x (3 + 4 + 2) = 72. Split: queries 3 x 12, keys and values 4 x (8 + 10), output 10 x 8, feed-forward 512.
    """
    latent = Latent(kv_rank=4, rope=2, value_dim=5, q_rank=3)
    shape = Transformer(layers=5, hidden=8, heads=2, head_dim=6, vocabulary=10, sequence=4, latent=latent)
    split = 36 + 72 + 80 + 512
    assert shape.parameters == 5 * (72 + split) + 80
    assert elements(shape, layout=Layout(tp=2), rank=0).common == 5 * 72 + (5 * split + 80) // 2


def test_a_v_of_stages_has_both_ends_on_one_rank() -> None:
    """Stages of 1, 2, 1 and 1 blocks. Rank 0 has the first and the last stage, and a tied embedding once."""
    layout = Layout(pp=2, schedule="zb-v", microbatches=4)
    assert [elements(SMALL, layout=layout, rank=rank).common for rank in (0, 1)] == [2 * 768 + 80, 3 * 768]


def test_experts_are_divided_by_ep_and_then_sharded_over_ranks_with_the_same_experts() -> None:
    """Four data ranks in two halves of experts: 640 / 2 on each rank, and ZeRO-3 keeps half of it.

    One dense block has 768 elements. One block has attention 256, router 32 and four experts of 2 x 8 x 10.
    """
    experts = Experts(count=4, top_k=1, ffn=10, dense_layers=1)
    shape = Transformer(layers=2, hidden=8, heads=2, vocabulary=10, sequence=4, experts=experts)
    layout = Layout(dp=4, ep=2, zero=3)
    assert elements(shape, layout=layout, rank=0) == Elements(common=768 + 288 + 80, experts=320)
    (rank,) = memory(shape, layout=layout, precision=Precision(), policy=ActivationPolicy())
    assert rank.states == States(weights=2 * (284 + 160), gradients=2 * (284 + 160), optimizer=12 * (284 + 160))


def test_the_first_rank_of_1f1b_holds_as_many_microbatches_as_there_are_ranks() -> None:
    """Stages of 1, 2, 1 and 1 blocks."""
    layout = Layout(pp=4, microbatches=8)
    ranks = memory(SMALL, layout=layout, precision=Precision(), policy=ActivationPolicy(dropout=False))
    assert [rank.in_flight for rank in ranks] == [4, 3, 2, 1]
    block = 34 * 4 * 8 - 2 * 4 * 8 + 2 * 2 * 4 * 4
    assert [rank.activations for rank in ranks[:3]] == [4 * block, 3 * 2 * block, 2 * block]


@pytest.mark.parametrize(
    ("layout", "sentence"),
    [
        ({"tp": 3}, "tp is 3; it must divide the 2 heads"),
        ({"tp": 2, "cp": 4}, "tp is 2; it must divide the 1 tokens that a cp rank has of a sequence"),
        ({"cp": 3}, "cp is 3; it must divide the 4 tokens of a sequence"),
        ({"cp": 4, "cp_method": "ulysses"}, "cp is 4; it must divide the 2 key and value heads of a tp rank"),
        ({"pp": 8}, "5 layers are too few for 8 stages; use a smaller pp"),
        ({"dp": 2, "ep": 2}, "ep = 2 needs experts, and the model has none; use ep = 1"),
    ],
)
def test_a_model_that_does_not_divide_is_refused(layout: dict[str, int], sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        memory(SMALL, layout=Layout(**layout), precision=Precision(), policy=ActivationPolicy())
    assert str(refused.value) == sentence


@pytest.mark.parametrize(
    ("layout", "sentence"),
    [
        ({"dp": 0}, "dp is 0; it must be at least 1"),
        ({"zero": 4}, "zero is 4; it must be one of 0, 1, 2, 3"),
        ({"dp": 2, "ep": 4}, "ep is 4; it must divide dp x cp = 2, from which it takes its ranks"),
        ({"dp": 4, "replicas": 2, "ep": 4}, "ep is 4; it must divide dp x cp / replicas = 2, the ranks of a replica"),
        ({"virtual": 2}, "virtual = 2 needs pp > 1; without a pipeline a rank has all layers at once"),
        ({"pp": 2, "virtual": 2, "microbatches": 3}, "interleaved needs a multiple of 2 microbatches"),
    ],
)
def test_an_impossible_layout_is_refused(layout: dict[str, int], sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        Layout(**layout)
    assert str(refused.value).startswith(sentence)


@pytest.mark.parametrize("name", [name for name, each in SCHEDULES.items() if each.settled_rounds is not None])
def test_more_microbatches_hold_no_more_once_a_schedule_has_settled(name: str) -> None:
    """Peaks of random bytes per stage, from the order of all microbatches."""
    schedule = SCHEDULES[name]
    for ranks, chunks in ((2, schedule.min_chunks), (3, schedule.min_chunks), (4, schedule.max_chunks or 3)):
        microbatches = ranks * 7
        layout = Layout(pp=ranks, microbatches=microbatches, schedule=name, virtual=chunks)
        policy = ActivationPolicy()
        shape = replace(SMALL, layers=2 * ranks * chunks - 1)
        kept = {
            stage: stage_bytes(shape, layout=layout, policy=policy, stage=stage)
            for stage in range(layout.pipeline.stages)
        }
        planned = memory(shape, layout=layout, precision=Precision(), policy=policy)
        whole = [max_held(order, kept) for order in orders(name, layout.pipeline).values()]
        assert [rank.activations for rank in planned] == whole


def test_shards_lie_within_a_replica() -> None:
    """HSDP: 8 data ranks in 2 replicas hold as much as 4 data ranks."""
    policy, precision = ActivationPolicy(), Precision()
    (hybrid,), (full,) = (
        memory(SMALL, layout=layout, precision=precision, policy=policy)
        for layout in (Layout(dp=8, replicas=2, zero=3), Layout(dp=4, zero=3))
    )
    assert hybrid.states == full.states
    with pytest.raises(UsageError, match="replicas is 3; it must divide dp = 8"):
        Layout(dp=8, replicas=3)


def test_attention_that_is_not_fused_has_a_buffer_of_scores_and_a_mask() -> None:
    """Two sequences of 4 x 4 scores: of 2 heads in 16 bits, over 2 ranks of tp, and a byte each of the mask."""
    layout, policy = Layout(tp=2, micro_batch=2), ActivationPolicy()
    assert scores_bytes(SMALL, layout=layout, policy=policy) == 2 * 16 * 2 * 2 // 2 + 2 * 16
    (rank,) = memory(SMALL, layout=layout, precision=Precision(), policy=policy, workspace_bytes=1000)
    assert rank.temporary == 1000 + 64 + 32
    (fused,) = memory(SMALL, layout=layout, precision=Precision(), policy=replace(policy, flash=True))
    assert fused.temporary == 0


def test_torchs_loss_holds_three_numbers_in_fp32_per_logit() -> None:
    """4 tokens x 10 logits. Megatron-LM's loss holds one number in fp32 and one in 16 bits."""
    sizes = [logits_bytes(SMALL, layout=Layout(dp=2, zero=zero), policy=ActivationPolicy()) for zero in (1, 2, 3)]
    assert sizes == [40 * 6, 40 * 12, 40 * 12]


@pytest.mark.parametrize(
    ("places", "on_device", "host", "nvme"),
    [
        ({}, 16, 0, 0),
        ({"optimizer_place": Place.CPU}, 4, 14, 0),
        ({"optimizer_place": Place.NVME}, 4, 2, 12),
        ({"parameters_place": Place.CPU}, 0, 16, 0),
        ({"parameters_place": Place.NVME}, 0, 14, 2),
        ({"parameters_place": Place.NVME, "optimizer_place": Place.NVME}, 0, 2, 14),
    ],
)
def test_offloaded_state_leaves_the_device(places: dict[str, Place], on_device: int, host: int, nvme: int) -> None:
    """2 + 2 + 12 bytes of each number of a shard. The CPU updates with gradients in its memory."""
    held, layout = Elements(common=400, experts=0), Layout(dp=4, zero=3, **places)  # type: ignore[arg-type]
    assert states(held, layout=layout, precision=Precision()).total == on_device * 100
    off = [off_device(held, layout=layout, precision=Precision(), place=place) for place in (Place.CPU, Place.NVME)]
    assert off == [host * 100, nvme * 100]


def test_a_node_keeps_a_second_copy_of_the_weights() -> None:
    """hpZ: a fourth of the weights in 16 bits on each rank of a node, next to an eighth."""
    held, layout = Elements(common=800, experts=0), Layout(dp=8, zero=3, node_ranks=4)
    assert states(held, layout=layout, precision=Precision()).weights == 2 * 100 + 2 * 200


@pytest.mark.parametrize(
    "settings",
    [
        {"zero": 0, "quantize_weights": True},
        {"zero": 2, "node_ranks": 2},
        {"zero": 3, "node_ranks": 3},
        {"zero": 2, "parameters_place": Place.CPU},
    ],
)
def test_settings_of_shards_need_shards(settings: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Layout(dp=4, **settings)  # type: ignore[arg-type]


def test_whole_sums_of_gradients_need_whole_gradients() -> None:
    with pytest.raises(UsageError, match="cast_sums needs ZeRO stage 0 or 1, not 2"):
        Layout(dp=4, zero=2, cast_sums=True)


def test_learned_positions_lie_on_the_first_stage_and_tp_does_not_split_them() -> None:
    """A block of 12 x 64 x 64 numbers on each of two stages, and a tied matrix of 64 x 100; 32 positions of 64."""
    shape = Transformer(layers=2, hidden=64, heads=4, vocabulary=100, sequence=32, positions=32)
    layout = Layout(tp=2, pp=2, microbatches=2)
    held = [elements(shape, layout=layout, rank=rank).common for rank in range(2)]
    assert held == [(12 * 64 * 64 + 64 * 100) // 2 + 32 * 64, (12 * 64 * 64 + 64 * 100) // 2]


def test_a_copied_output_of_attention_stays_too() -> None:
    """2 x 32 tokens of 64 numbers of 2 bytes; one sequence needs no copy."""
    shape = Transformer(layers=2, hidden=64, heads=4, vocabulary=100, sequence=32)
    policy = ActivationPolicy(flash=True)
    for micro_batch, more in ((1, 0), (2, 2 * 32 * 64 * 2)):
        layout = Layout(micro_batch=micro_batch)
        copied = block_bytes(shape, layout=layout, policy=replace(policy, copies_output=True))
        assert copied - block_bytes(shape, layout=layout, policy=policy) == more
