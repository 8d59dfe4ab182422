"""FLOP formulas by hand and against each other. Published numbers stand in test_published.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincope.errors import UsageError
from traincope.plan.model.flops import (
    Recompute,
    attention_forward,
    rule_flops,
    six_n_d,
    step_flops,
)
from traincope.plan.model.transformer import Experts, Transformer


def test_full_recomputation_takes_96_parts_and_the_model_72() -> None:
    """96 B L s h^2 (1 + s / 6h + V / 16hL), the paper's appendix A, for the 22B model and a batch of 4."""
    layers, hidden, vocabulary, sequence = 48, 6144, 51200, 2048
    shape = Transformer(layers=layers, hidden=hidden, heads=64, vocabulary=vocabulary, sequence=sequence)
    factor = 1 + sequence / (6 * hidden) + vocabulary / (16 * hidden * layers)
    expected = 96 * 4 * layers * sequence * hidden * hidden * factor
    assert step_flops(shape, batch=4, recompute=Recompute.FULL).hardware == pytest.approx(expected, rel=1e-12)


def test_grouped_queries_and_a_gated_feed_forward_by_hand() -> None:
    """Hidden 8, 4 heads of 2, 2 of them for keys: Q 64, K 32, V 32, out 64; three matrices of 8 x 20."""
    shape = Transformer(layers=1, hidden=8, heads=4, kv_heads=2, ffn=20, gated_mlp=True, vocabulary=10, sequence=3)
    assert shape.block_weights == 64 + 32 + 32 + 64 + 3 * 160
    assert shape.parameters == 672 + 80
    weights, attention = 2 * 2 * 3 * (672 + 80), 2 * 4 * 3 * 3 * 8
    assert step_flops(shape, batch=2).model == 3 * (weights + attention)
    assert step_flops(shape, batch=2, causal_half=True).model == 3 * (weights + attention // 2)


def test_with_each_forward_twice_6_n_becomes_8_n() -> None:
    """Narayanan et al. 2021, arXiv:2104.04473, equation 4."""
    shape = Transformer(layers=2, hidden=8, heads=2, vocabulary=16, sequence=4)
    weights = 2 * 12 * 64 + 8 * 16
    assert rule_flops(shape, batch=3, recompute=Recompute.FULL, attention=False).hardware == 8 * weights * 12
    assert six_n_d(parameters=weights, tokens=12, recompute_all=True) == 8 * weights * 12


def test_flops_of_a_token_count_only_the_experts_that_it_takes() -> None:
    """Hidden 8, one block: attention 256, router 32, two of four experts of 2 x 8 x 10; logits 40."""
    experts = Experts(count=4, top_k=2, ffn=10)
    shape = Transformer(layers=1, hidden=8, heads=2, vocabulary=5, sequence=3, experts=experts)
    scores = 4 * 2 * 9 * 8
    assert step_flops(shape, batch=2).model == 3 * (2 * 6 * (256 + 32 + 2 * 160 + 40) + scores)


def test_attention_flops_use_the_width_of_the_heads() -> None:
    """Two heads of 8 on a stream of 4, one sequence of 3: 4 x 9 x 16; Q and out 2 x 64, K and V 2 x 64, inner 128."""
    shape = Transformer(layers=1, hidden=4, heads=2, head_dim=8, vocabulary=5, sequence=3)
    assert attention_forward(shape, batch=1) == 4 * 9 * 16
    assert step_flops(shape, batch=1).model == 3 * (2 * 3 * (4 * 64 + 128 + 20) + 4 * 9 * 16)


def test_attention_within_documents_is_proportional_to_their_squared_lengths() -> None:
    """Two sequences of 8 as documents of 8, 5 and 3 tokens: 64 + 25 + 9."""
    shape = Transformer(layers=3, hidden=4, heads=2, vocabulary=5, sequence=8)
    assert attention_forward(shape, batch=2, squared_lengths=98) == 4 * 3 * 98 * 4
    assert attention_forward(shape, batch=2, squared_lengths=128) == attention_forward(shape, batch=2)
    for impossible in (15, 129):
        with pytest.raises(UsageError, match=f"sum to between 16 and 128, not to {impossible}"):
            attention_forward(shape, batch=2, squared_lengths=impossible)


@given(
    layers=st.integers(1, 50),
    heads=st.integers(1, 16),
    ffn=st.integers(1, 500),
    vocabulary=st.integers(1, 1000),
    sequence=st.integers(1, 500),
    batch=st.integers(1, 9),
)
def test_the_rule_per_token_is_the_step_formula(
    layers: int, heads: int, ffn: int, vocabulary: int, sequence: int, batch: int
) -> None:
    """6 N + 12 L H Q T times the tokens, for all shapes; recomputation only adds."""
    shape = Transformer(layers=layers, hidden=4 * heads, heads=heads, ffn=ffn, vocabulary=vocabulary, sequence=sequence)
    flops = [step_flops(shape, batch=batch, recompute=recompute) for recompute in Recompute]
    per_token = 6 * shape.active_parameters + 12 * layers * 4 * heads * sequence
    assert {each.model for each in flops} == {per_token * batch * sequence}
    assert rule_flops(shape, batch=batch).model == flops[0].model
    assert flops[0].hardware == flops[0].model < flops[1].hardware < flops[0].hardware * 2


def test_impossible_sizes_are_reported() -> None:
    with pytest.raises(UsageError, match="layers is 0; it must be at least 1"):
        Transformer(layers=0, hidden=8, heads=2, vocabulary=8, sequence=8)
    with pytest.raises(UsageError, match="heads = 4 and kv_heads = 3"):
        Transformer(layers=1, hidden=8, heads=4, kv_heads=3, vocabulary=8, sequence=8)
