"""The GPT: properties of its parts, and equality of consecutive stages with the whole model."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.nn import functional

from traincope.engine.config import ModelConfig
from traincope.engine.model.attention import Attention
from traincope.engine.model.initialise import initialise
from traincope.engine.model.model import GPT, next_token_loss
from traincope.engine.model.rotary import rotate, rotation_table

CONFIG = ModelConfig(layers=4, hidden=32, heads=4, kv_heads=2, ffn=80, sequence=16)
CPU = torch.device("cpu")


def make(config: ModelConfig = CONFIG, *, seed: int = 0, **stage: Any) -> GPT:
    model = GPT(config, **stage)
    initialise(model, config, seed=seed)
    return model


def tokens(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(257, shape, generator=torch.Generator().manual_seed(seed))


def test_the_number_of_parameters_agrees_with_the_formulas() -> None:
    attention = 32 * 32 + 2 * 32 * 16 + 32 * 32
    feed_forward = 3 * 32 * 80
    block = attention + feed_forward + 2 * 32
    assert sum(parameter.numel() for parameter in make().parameters()) == 4 * block + 2 * 257 * 32 + 32


def test_a_token_changes_no_logits_before_it() -> None:
    model, x = make(), tokens(2, 16)
    changed = x.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 257
    before, after = model(x), model(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert torch.all((before[:, 9:] - after[:, 9:]).abs().amax(dim=2) > 1e-5)


def test_an_untrained_model_predicts_all_tokens_equally() -> None:
    loss = next_token_loss(make()(tokens(8, 16)), tokens(8, 16, seed=1))
    assert loss.item() == pytest.approx(math.log(257), abs=0.05)


def test_the_loss_of_uniform_logits_is_the_logarithm_of_the_vocabulary() -> None:
    loss = next_token_loss(torch.zeros(2, 3, 8, dtype=torch.bfloat16), tokens(2, 3) % 8)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(math.log(8))


@pytest.mark.parametrize("ends", [(2,), (1, 2, 3), (1, 3), (0, 2, 4)], ids=str)
def test_consecutive_stages_equal_the_whole_model(ends: tuple[int, ...]) -> None:
    """Stages that begin at these layers; the first or the last has no layer in one case."""
    x = tokens(2, 16)
    activations: torch.Tensor = x
    split = [range(start, stop) for start, stop in pairwise((0, *ends, 4))]
    for stage, layers in enumerate(split):
        is_last = stage == len(split) - 1
        activations = make(layers=layers, is_first=stage == 0, is_last=is_last)(activations)
    torch.testing.assert_close(activations, make()(x), atol=0.0, rtol=0.0)


def test_rotation_keeps_lengths_and_does_not_change_position_zero() -> None:
    x = torch.randn(1, 2, 16, 8)
    turned = rotate(x, rotation_table(range(16), head_size=8, theta=10_000.0, device=CPU))
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    assert torch.equal(turned[:, :, 0], x[:, :, 0])


def test_rotated_products_depend_on_the_distance_only() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(8), torch.randn(8)
    table = rotation_table(range(16), head_size=8, theta=100.0, device=CPU)
    queries, keys = (rotate(x.expand(1, 1, 16, 8), table)[0, 0] for x in (query, key))
    torch.testing.assert_close(queries[5] @ keys[2], queries[14] @ keys[11], atol=1e-5, rtol=1e-5)
    assert abs(queries[5] @ keys[2] - queries[5] @ keys[3]) > 1e-3


def test_the_first_frequency_rotates_one_radian_per_position() -> None:
    cos, sin = rotation_table(range(3), head_size=4, theta=10_000.0, device=CPU)
    torch.testing.assert_close(cos[:, 0], torch.tensor([1.0, math.cos(1.0), math.cos(2.0)]))
    torch.testing.assert_close(sin[:, 1], torch.tensor([0.0, math.sin(0.01), math.sin(0.02)]))


def test_pieces_of_a_sequence_are_rotated_by_their_positions_in_it() -> None:
    whole = rotation_table(range(8), head_size=4, theta=10_000.0, device=CPU)
    pieces = rotation_table(range(2, 4), range(6, 8), head_size=4, theta=10_000.0, device=CPU)
    for part, of_whole in zip(pieces, whole, strict=True):
        assert torch.equal(part, of_whole[[2, 3, 6, 7]])


def test_attention_equals_the_textbook_formula_with_shared_keys() -> None:
    attention, x = Attention(CONFIG), torch.randn(1, 6, 32)
    table = rotation_table(range(6), head_size=8, theta=CONFIG.rope_theta, device=CPU)
    query = rotate(attention.query(x).view(1, 6, 4, 8).transpose(1, 2), table)
    key = rotate(attention.key(x).view(1, 6, 2, 8).transpose(1, 2), table).repeat_interleave(2, dim=1)
    value = attention.value(x).view(1, 6, 2, 8).transpose(1, 2).repeat_interleave(2, dim=1)
    scores = query @ key.transpose(2, 3) / math.sqrt(8)
    scores = scores.masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf)
    expected = attention.out((functional.softmax(scores, dim=-1) @ value).transpose(1, 2).reshape(1, 6, 32))
    torch.testing.assert_close(attention(x), expected, atol=1e-6, rtol=1e-5)


def test_autocast_computes_in_bf16_and_keeps_the_weights() -> None:
    model = GPT(CONFIG, autocast=torch.bfloat16)
    assert model(tokens(1, 4)).dtype == torch.bfloat16
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
