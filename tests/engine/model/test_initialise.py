"""Starting weights are a function of name and seed."""

import pytest
import torch

from traincope.engine.config import ModelConfig
from traincope.engine.model.initialise import initialise
from traincope.engine.model.model import GPT

CONFIG = ModelConfig(layers=4, hidden=64, heads=4, kv_heads=2, ffn=160)


def weights(*, layers: range | None = None, seed: int = 0) -> dict[str, torch.Tensor]:
    model = GPT(CONFIG, layers=layers)
    initialise(model, CONFIG, seed=seed)
    return dict(model.named_parameters())


def test_a_stage_has_the_starting_weights_of_the_whole_model() -> None:
    whole, stage = weights(), weights(layers=range(2, 4))
    assert set(stage) < set(whole)
    assert all(torch.equal(parameter, whole[name]) for name, parameter in stage.items())


def test_the_seed_changes_every_matrix() -> None:
    first, second = weights(seed=1), weights(seed=2)
    assert all(not torch.equal(first[name], second[name]) for name in first if first[name].ndim == 2)


def test_layers_of_the_same_shape_start_with_different_weights() -> None:
    whole = weights()
    assert not torch.equal(whole["blocks.0.attention.query.weight"], whole["blocks.1.attention.query.weight"])


def test_gains_start_at_one_and_matrices_with_their_standard_deviation() -> None:
    whole = weights()
    assert torch.equal(whole["norm.weight"], torch.ones(64))
    assert whole["embedding.weight"].std().item() == pytest.approx(0.02, rel=0.05)
    assert whole["blocks.3.feed_forward.down.weight"].std().item() == pytest.approx(0.02 / 8**0.5, rel=0.05)
