"""The linear form of a step's FLOPs is the step's formula, whatever the shapes."""

from hypothesis import given
from hypothesis import strategies as st

from traincope.plan.flops import step_flops
from traincope.plan.rates import Amounts, model_rates, passes
from traincope.plan.transformer import Experts, Transformer

MIXTURE = Experts(count=4, top_k=2, ffn=10, shared=1, shared_ffn=20, dense_layers=1)


def test_rates_by_hand() -> None:
    """Hidden 8, 3 blocks: 256 of attention each; a dense 2 x 8 x 32; router 32 and a shared 2 x 8 x 20 in two blocks.

    An expert has 2 x 8 x 10 elements and a token passes two in each of two blocks; logits 8 x 5.
    """
    shape = Transformer(layers=3, hidden=8, heads=2, vocabulary=5, sequence=3, experts=MIXTURE)
    rates = model_rates(shape)
    assert rates.token == 6 * (3 * 256 + 512 + 2 * (32 + 320) + 40)
    assert rates.squared_length == 12 * 3 * 8
    assert (rates.routed_token, passes(shape)) == (6 * 160, 4)
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
def test_a_step_of_whole_sequences_takes_what_the_formula_says(
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
    went = Amounts(tokens=tokens, squared_lengths=tokens * sequence, routed_tokens=tokens * passes(shape))
    for causal_half in (False, True):
        wanted = step_flops(shape, batch=batch, causal_half=causal_half).model
        assert model_rates(shape).flops(went, causal_half=causal_half) == wanted
