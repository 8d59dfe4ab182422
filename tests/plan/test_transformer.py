"""Weights of published models, from nothing but their published shapes."""

import pytest

from traincope.errors import UsageError
from traincope.plan.transformer import Experts, Transformer

GPT3 = Transformer(layers=96, hidden=12288, heads=96, vocabulary=50257, sequence=2048)
PALM = Transformer(
    layers=118, hidden=18432, heads=48, kv_heads=1, head_dim=256, gated_mlp=True, vocabulary=256_000, sequence=2048
)
LLAMA3_405B = Transformer(
    layers=126,
    hidden=16384,
    heads=128,
    kv_heads=8,
    ffn=53248,
    gated_mlp=True,
    untied=True,
    vocabulary=128_256,
    sequence=8192,
)
MIXTRAL = Transformer(
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    ffn=14336,
    gated_mlp=True,
    untied=True,
    vocabulary=32_000,
    sequence=32_768,
    experts=Experts(count=8, top_k=2, ffn=14336),
)
DEEPSEEK_MOE = Transformer(
    layers=28,
    hidden=2048,
    heads=16,
    ffn=10944,
    gated_mlp=True,
    untied=True,
    vocabulary=102_400,
    sequence=4096,
    experts=Experts(count=64, top_k=6, ffn=1408, shared=2, dense_layers=1),
)


@pytest.mark.parametrize(
    ("model", "billions", "active"),
    [
        (PALM, 540.35, 540.35),  # Chowdhery et al. 2022, arXiv:2204.02311, table 1
        (MIXTRAL, 46.7, 12.9),  # Jiang et al. 2024, arXiv:2401.04088, of "47B" and "13B": mistral.ai's 46.7B, 12.9B
        (DEEPSEEK_MOE, 16.4, 2.8),  # Dai et al. 2024, arXiv:2401.06066, table 1
    ],
)
def test_parameters_are_the_published_ones(model: Transformer, billions: float, active: float) -> None:
    assert round(model.parameters / 1e9, 2 if model is PALM else 1) == billions
    assert round(model.active_parameters / 1e9, 2 if model is PALM else 1) == active


@pytest.mark.parametrize(("model", "billions"), [(GPT3, 175), (LLAMA3_405B, 405)])
def test_what_is_called_by_its_size_has_that_size(model: Transformer, billions: float) -> None:
    assert model.parameters / 1e9 == pytest.approx(billions, rel=0.005)


def test_experts_by_hand() -> None:
    """Hidden 8: attention 4 x 64; dense 2 x 8 x 32; an expert 2 x 8 x 10, of 4 a token takes 1, and 1 is shared."""
    experts = Experts(count=4, top_k=1, ffn=10, shared=1, dense_layers=1)
    shape = Transformer(layers=3, hidden=8, heads=2, vocabulary=5, sequence=3, experts=experts)
    assert shape.routed_weights == 4 * 160
    assert shape.unrouted_weights == 256 + 8 * 4 + 160
    assert shape.parameters == (256 + 512) + 2 * (448 + 640) + 40
    assert shape.active_parameters == (256 + 512) + 2 * (448 + 160) + 40


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ({"count": 0, "top_k": 1, "ffn": 8}, "experts: count = 0 must be at least 1"),
        ({"count": 4, "top_k": 5, "ffn": 8}, "a token cannot take top_k = 5 of 4 experts; take fewer"),
        ({"count": 4, "top_k": 1, "ffn": 8, "shared": -1}, "experts: shared = -1 must be at least 0"),
        ({"count": 4, "top_k": 1, "ffn": 8, "dense_layers": 2}, "2 dense layers are more than all 1 layers"),
    ],
)
def test_experts_that_cannot_be_are_refused(sizes: dict[str, int], sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        Transformer(layers=1, hidden=8, heads=2, vocabulary=8, sequence=8, experts=Experts(**sizes))
    assert str(refused.value) == sentence
