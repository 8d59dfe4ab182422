"""Weights by hand. Published models stand in test_published.py."""

import pytest

from traincope.errors import UsageError
from traincope.plan.model.transformer import Experts, Transformer


def test_experts_by_hand() -> None:
    """Hidden 8: attention 4 x 64; dense 2 x 8 x 32; an expert 2 x 8 x 10; a token takes 1 of 4, and 1 is shared."""
    experts = Experts(count=4, top_k=1, ffn=10, shared=1, dense_layers=1)
    shape = Transformer(layers=3, hidden=8, heads=2, vocabulary=5, sequence=3, experts=experts)
    assert shape.routed_weights == 4 * 160
    assert shape.unrouted_weights == 256 + 8 * 4 + 160
    assert shape.parameters == (256 + 512) + 2 * (448 + 640) + 40
    assert shape.active_parameters == (256 + 512) + 2 * (448 + 160) + 40


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ({"count": 0, "top_k": 1, "ffn": 8}, "experts: count is 0; it must be at least 1"),
        ({"count": 4, "top_k": 5, "ffn": 8}, "a token cannot take top_k = 5 of 4 experts; take fewer"),
        ({"count": 4, "top_k": 1, "ffn": 8, "shared": -1}, "experts: shared is -1; it must be at least 0"),
        (
            {"count": 4, "top_k": 1, "ffn": 8, "dense_layers": 2},
            "dense_layers is 2; it must be at most the number of layers, 1",
        ),
    ],
)
def test_impossible_experts_are_refused(sizes: dict[str, int], sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        Transformer(layers=1, hidden=8, heads=2, vocabulary=8, sequence=8, experts=Experts(**sizes))
    assert str(refused.value) == sentence
