"""Rates of a step's FLOPs agree with the step's formula for all shapes."""

from hypothesis import given
from hypothesis import strategies as st

from traincope.plan.model.flops import step_flops
from traincope.plan.model.rates import Amounts, expert_passes, model_rates
from traincope.plan.model.transformer import Experts, Transformer

MIXTURE = Experts(count=4, top_k=2, ffn=10, shared=1, shared_ffn=20, dense_layers=1)


def test_rates_by_hand() -> None:
    """Hidden 8, 3 blocks with 256 of attention each; one dense 2 x 8 x 32; two with router 32 and shared 2 x 8 x 20.

    An expert has 2 x 8 x 10 elements, and a token passes two in each of two blocks; logits 8 x 5.
    """
    shape = Transformer(layers=3, hidden=8, heads=2, vocabulary=5, sequence=3, experts=MIXTURE)
    rates = model_rates(shape)
    assert rates.token == 6 * (3 * 256 + 512 + 2 * (32 + 320) + 40)
    assert rates.squared_length == 12 * 3 * 8
    assert (rates.routed_token, expert_passes(shape)) == (6 * 160, 4)
    assert rates.flops(Amounts(tokens=1, squared_lengths=2), causal_half=True) == rates.token + rates.squared_length


@given(
    layers=st.integers(1, 9),
    heads=st.integers(1, 9),
    ffn=st.integers(1, 500),
    sequence=st.integers(1, 500),
    batch=st.integers(1, 9),
    gated=st.booleans(),
    experts=st.sampled_from((None, MIXTURE)),
)
def test_rates_of_a_step_of_whole_sequences_agree_with_the_formula(
    layers: int, heads: int, ffn: int, sequence: int, batch: int, gated: bool, experts: Experts | None
) -> None:
    shape = Transformer(
        layers=layers,
        hidden=4 * heads,
        heads=heads,
        ffn=ffn,
        vocabulary=11,
        sequence=sequence,
        gated_mlp=gated,
        experts=experts,
    )
    tokens = batch * sequence
    went = Amounts(tokens=tokens, squared_lengths=tokens * sequence, routed_tokens=tokens * expert_passes(shape))
    for causal_half in (False, True):
        expected = step_flops(shape, batch=batch, causal_half=causal_half).model
        assert model_rates(shape).flops(went, causal_half=causal_half) == expected
