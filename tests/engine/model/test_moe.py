"""A layer of experts on one rank: the weighted sum, its counts, and its options."""

import pytest
import torch
from torch.nn import functional

from traincope.engine.config import Config, ExpertsConfig, ModelConfig
from traincope.engine.model.expert_load import expert_loads
from traincope.engine.model.initialise import initialise
from traincope.engine.model.model import GPT
from traincope.engine.model.moe import MixtureOfExperts
from traincope.engine.parallel.expert_parallel import load_counters
from traincope.engine.parallel.recompute import apply_recompute

MODEL = ModelConfig(layers=2, hidden=32, heads=4, kv_heads=2, ffn=80, sequence=16)
CPU = torch.device("cpu")


def make(**settings: object) -> MixtureOfExperts:
    return mixture(gpt(**settings), layer=0)


def gpt(**settings: object) -> GPT:
    experts = ExpertsConfig(**({"number": 4, "top_k": 2, "ffn": 24} | settings))  # type: ignore[arg-type]
    model = GPT(MODEL, experts=experts)
    initialise(model, MODEL, seed=0)
    return model


def mixture(model: GPT, *, layer: int) -> MixtureOfExperts:
    actual = model.blocks[str(layer)].feed_forward
    assert isinstance(actual, MixtureOfExperts)
    return actual


def swiglu(x: torch.Tensor, layer: MixtureOfExperts, expert: int) -> torch.Tensor:
    experts = layer.experts
    return (functional.silu(x @ experts.gate[expert]) * (x @ experts.up[expert])) @ experts.down[expert]


def test_a_token_gets_the_weighted_sum_of_its_experts() -> None:
    layer, x = make(), torch.randn(2, 16, 32)
    routing = layer.router(x)
    expected = torch.zeros_like(x)
    for sequence in range(2):
        for token in range(16):
            for expert, weight in zip(routing.chosen[sequence, token], routing.weights[sequence, token], strict=True):
                expected[sequence, token] += weight * swiglu(x[sequence, token], layer, int(expert))
    torch.testing.assert_close(layer(x), expected, atol=1e-6, rtol=1e-5)


def test_equal_experts_act_as_one_feed_forward() -> None:
    layer, x = make(), torch.randn(2, 16, 32)
    for weight in layer.experts.parameters():
        weight.data[:] = weight.data[0].clone()
    torch.testing.assert_close(layer(x), swiglu(x, layer, 0), atol=1e-6, rtol=1e-5)


def test_a_shared_feed_forward_is_added_for_each_token() -> None:
    with_shared, x = make(shared=True), torch.randn(2, 16, 32)
    assert with_shared.shared is not None
    torch.testing.assert_close(with_shared(x), make()(x) + with_shared.shared(x))


def test_the_number_of_parameters_agrees_with_the_formulas() -> None:
    attention = 2 * 32 * 32 + 2 * 32 * 16
    experts = 4 * 32 + 4 * 3 * 32 * 24
    block = attention + experts + 3 * 32 * 80 + 2 * 32
    actual = sum(parameter.numel() for parameter in gpt(shared=True).parameters())
    assert actual == 2 * block + 2 * 257 * 32 + 32


def loads(model: GPT) -> list[tuple[dict[int, int], int, int]]:
    return [
        (dict(load.tokens), load.padding, load.dropped)
        for load in expert_loads(load_counters([model]), group=None, device=CPU)
    ]


def test_a_hot_expert_gets_each_token_and_dropped_choices_are_counted() -> None:
    """The hot expert has 8 rows per sequence and drops 8 of its 16 tokens.

    There are 2 x 16 tokens and ceil(1.0 x 16 x 2 / 4) = 8 rows per sequence and expert. The other 16 second choices of
    a sequence find 24 rows.
    """
    model = gpt(hot_expert=1)
    model(torch.randint(257, (2, 16)))
    assert [tokens[1] for tokens, _, _ in loads(model)] == [32, 32]
    model = gpt(hot_expert=1, capacity_factor=1.0)
    model(torch.randint(257, (2, 16)))
    for tokens, padding, dropped in loads(model):
        assert tokens[1] == 16
        assert sum(tokens.values()) + dropped == 2 * 16 * 2
        assert sum(tokens.values()) + padding == 2 * 4 * 8
        assert dropped >= 16


@pytest.mark.parametrize("mode", ["none", "pointwise", "selective", "full"])
def test_load_counts_recomputation_once_and_evaluation_never(mode: str) -> None:
    model, x = gpt(), torch.randint(257, (2, 16))
    apply_recompute(model, mode)  # type: ignore[arg-type]
    model(x).sum().backward()
    model(x).sum().backward()
    assert [sum(tokens.values()) for tokens, _, _ in loads(model)] == [128, 128]
    model.eval()
    model(x)
    assert [sum(tokens.values()) for tokens, _, _ in loads(model)] == [0, 0]


def test_experts_without_tokens_have_a_gradient_of_zero() -> None:
    layer = make(number=4, top_k=1, hot_expert=2)
    layer(torch.randn(1, 4, 32)).square().sum().backward()
    for weight in layer.experts.parameters():
        assert weight.grad is not None
        assert weight.grad.abs().sum(dim=(1, 2)).gt(0).tolist() == [False, False, True, False]


def test_bf16_experts_multiply_in_bf16() -> None:
    layer = make()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(torch.randn(1, 4, 32)).dtype == torch.bfloat16


def test_experts_start_from_their_names_with_small_weights_into_the_residual_stream() -> None:
    layer = make()
    assert layer.experts.gate.std().item() == pytest.approx(0.02, rel=0.05)
    assert layer.experts.down.std().item() == pytest.approx(0.02 / 2, rel=0.05)
    assert Config(model=MODEL, experts=ExpertsConfig(number=4)).experts is not None
