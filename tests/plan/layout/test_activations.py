"""Activations that forward keeps, against the table and numbers of Korthikanti et al. 2022, arXiv:2205.05198."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincope.plan.layout.activations import ActivationPolicy, block_bytes, stage_bytes
from traincope.plan.layout.layout import Layout
from traincope.plan.layout.memory import max_held
from traincope.plan.model.flops import Recompute
from traincope.plan.model.transformer import Experts, Latent, Transformer
from traincope.plan.pipeline.actions import Action
from traincope.plan.pipeline.orders import Shape, orders

A, H, S, B, T, V = 16, 64, 32, 3, 4, 96
SHAPE = Transformer(layers=6, hidden=H, heads=A, vocabulary=V, sequence=S)
STREAM = S * B * H
SCORES = 5 * A * S / H


@pytest.mark.parametrize(
    ("layout", "recompute", "factor"),
    [
        (Layout(micro_batch=B), Recompute.NONE, 34 + SCORES),
        (Layout(micro_batch=B, tp=T, sequence_parallel=False), Recompute.NONE, 10 + 24 / T + SCORES / T),
        (Layout(micro_batch=B, tp=T), Recompute.NONE, 34 / T + SCORES / T),
        (Layout(micro_batch=B, tp=T, sequence_parallel=False), Recompute.SELECTIVE, 10 + 24 / T),
        (Layout(micro_batch=B, tp=T), Recompute.SELECTIVE, 34 / T),
        (Layout(micro_batch=B, tp=T, sequence_parallel=False), Recompute.FULL, 2),
    ],
)
def test_a_blocks_activations_agree_with_table_2(layout: Layout, recompute: Recompute, factor: float) -> None:
    assert block_bytes(SHAPE, layout=layout, policy=ActivationPolicy(recompute=recompute)) == STREAM * factor


def test_embedding_and_output_of_one_stage_agree_with_section_4_3() -> None:
    """s b h L / t (1 / L + 4 / L (1 + v / h)): dropout after the embedding, the last norm, the output, fp32 logits.

    The logits in 16 bits are 2 v / h more.
    """
    layout = Layout(micro_batch=B, tp=T)
    blocks = 6 * block_bytes(SHAPE, layout=layout, policy=ActivationPolicy())
    extra = STREAM / T * (1 + 4 * (1 + V / H) + 2 * V / H)
    assert stage_bytes(SHAPE, layout=layout, policy=ActivationPolicy(), stage=0) == blocks + extra


@given(ranks=st.integers(1, 8), chunks=st.integers(2, 4), rounds=st.integers(2, 3))
def test_interleaving_holds_more_activations_by_the_factor_of_section_4_3(ranks: int, chunks: int, rounds: int) -> None:
    """L (1 + (p - 1) / (p m)) blocks on the first rank with m stages per rank; 1F1B holds L."""
    per_stage = 2
    shape = Shape(ranks=ranks, microbatches=ranks * rounds, chunks=chunks)
    layers = per_stage * shape.stages
    held = dict.fromkeys(range(shape.stages), per_stage)
    assert max_held(orders("interleaved", shape)[0], held) == pytest.approx(
        layers * (1 + (ranks - 1) / (ranks * chunks))
    )
    whole = Shape(ranks=ranks, microbatches=ranks * rounds)
    assert max_held(orders("1f1b", whole)[0], dict.fromkeys(range(ranks), layers // ranks)) == layers


def test_activations_are_held_until_the_weight_gradient_is_done() -> None:
    """F0 F1 I0 W0 F2 ...: after I0 both are held, after W0 one; a whole backward frees at once."""
    split = (Action("F", 0, 0), Action("I", 0, 0), Action("F", 0, 1), Action("W", 0, 0), Action("F", 0, 2))
    assert max_held(split, {0: 5}) == 10
    assert max_held((Action("F", 0, 0), Action("B", 0, 0), Action("F", 0, 1)), {0: 5}) == 5


def test_a_split_backward_holds_from_i_to_w_what_it_computed_again() -> None:
    """F0 F1 I0 W0 F2 with 5 and 3 again: 10 after F1, 13 after I0, 5 after W0, 10 after F2."""
    order = tuple(Action(*each) for each in (("F", 0, 0), ("F", 0, 1), ("I", 0, 0), ("W", 0, 0), ("F", 0, 2)))
    assert max_held(order, {0: 5}, again={0: 3}) == 13
    assert max_held(order[3:], {0: 5}, again={0: 3}) == 0


def test_a_modern_block_by_hand() -> None:
    """A token keeps 536 numbers.

    Hidden 64 in 16 heads of 4, 4 of them for keys (16 wide); three inner tensors of 40; no masks, no scores. Block
    inputs 4 x 64, queries and output 2 x 64, keys and values 2 x 16, inner values 3 x 40: 536.
    """
    shape = Transformer(layers=1, hidden=64, heads=16, kv_heads=4, ffn=40, gated_mlp=True, vocabulary=8, sequence=S)
    policy = ActivationPolicy(flash=True, dropout=False, dtype="fp32")
    assert block_bytes(shape, layout=Layout(micro_batch=B), policy=policy) == 4 * B * S * 536
    assert block_bytes(shape, layout=Layout(micro_batch=B, cp=2), policy=policy) == 4 * B * S * 536 // 2


def test_a_latent_attentions_block_by_hand() -> None:
    """A token keeps 4 x 64 numbers of the stream and 2 x (12 + 16) around the norms of its narrow vectors, which
    sequence parallelism splits, and 2 x 96 of queries and keys, 2 x 80 of values and their mix, and 2 x 40 of the
    feed-forward, which tp splits.
    """
    latent = Latent(kv_rank=16, rope=8, value_dim=20, q_rank=12)
    shape = Transformer(layers=1, hidden=64, heads=4, head_dim=24, ffn=40, vocabulary=8, sequence=S, latent=latent)
    policy = ActivationPolicy(flash=True, dropout=False)
    stream, heads = 4 * 64 + 2 * 28, 2 * 96 + 2 * 80 + 2 * 40
    assert block_bytes(shape, layout=Layout(), policy=policy) == 2 * S * (stream + heads)
    assert block_bytes(shape, layout=Layout(tp=2), policy=policy) == 2 * S * (stream + heads) // 2
    kept = block_bytes(shape, layout=Layout(tp=2, sequence_parallel=False), policy=policy)
    assert kept == 2 * S * (stream + heads // 2)


def test_without_dropout_softmax_keeps_one_number_per_score() -> None:
    with_scores, without = (
        block_bytes(SHAPE, layout=Layout(), policy=ActivationPolicy(flash=flash, dropout=False))
        for flash in (False, True)
    )
    assert with_scores - without == 2 * A * S * S


def test_a_token_keeps_inputs_inner_values_and_outputs_of_its_experts() -> None:
    """Attention keeps 4 x 64 + 4 x 64. Two experts add 2 x 64 each, and with the shared one 3 x 2 x 10 inner values."""
    experts = Experts(count=4, top_k=2, ffn=10, shared=1)
    shape = Transformer(layers=1, hidden=H, heads=A, vocabulary=V, sequence=S, experts=experts)
    policy = ActivationPolicy(flash=True, dropout=False)
    numbers = 4 * 64 + 4 * 64 + 2 * 2 * 64 + 3 * 2 * 10
    assert block_bytes(shape, layout=Layout(), policy=policy, routed=True) == 2 * S * numbers
