"""Packed documents: attention, positions and loss of each document are those of the document alone."""

from dataclasses import replace
from itertools import accumulate, pairwise

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from traincope.engine.config import ExpertsConfig, ModelConfig
from traincope.engine.model.attention import Core
from traincope.engine.model.documents import Documents, document_arguments, places, squared_lengths
from traincope.engine.model.initialise import initialise
from traincope.engine.model.model import GPT
from traincope.engine.parallel.recompute import apply_recompute

END = 7
TOKENS = torch.tensor([[1, 2, END, END, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 1, END], [END, 1, 2, END, 3, END, 4, 5]])
LENGTHS = ((3, 1, 4), (8,), (1, 3, 2, 2))
CONFIG = ModelConfig(layers=2, hidden=32, heads=4, kv_heads=2, ffn=80, sequence=8, vocabulary=16)


def make(experts: ExpertsConfig | None = None) -> GPT:
    model = GPT(CONFIG, experts=experts)
    initialise(model, CONFIG, seed=0)
    return model


def spans() -> list[tuple[int, slice]]:
    """Sequence and tokens of each document."""
    return [
        (row, slice(start, stop))
        for row, lengths in enumerate(LENGTHS)
        for start, stop in pairwise(accumulate(lengths, initial=0))
    ]


def test_places_restart_after_each_document_and_in_each_sequence() -> None:
    assert places(TOKENS, end=END).tolist() == [
        [0, 1, 2, 0, 0, 1, 2, 3],
        [0, 1, 2, 3, 4, 5, 6, 7],
        [0, 0, 1, 2, 0, 1, 0, 1],
    ]


def test_document_lengths_are_the_distances_between_ends() -> None:
    assert Documents.at(places(TOKENS, end=END), CONFIG).lengths == LENGTHS


def test_squared_lengths_sum_over_documents_or_whole_sequences() -> None:
    assert squared_lengths(TOKENS, end=END) == (9 + 1 + 16) + 64 + (1 + 9 + 4 + 4)
    assert squared_lengths(TOKENS, end=None) == 3 * 64


def test_attention_over_whole_sequences_needs_no_document_arguments() -> None:
    assert document_arguments(TOKENS, end=None) == {}


def test_attention_of_a_packed_document_equals_that_of_the_document_alone_to_the_bit() -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(3, heads, 8, 8, requires_grad=True) for heads in (4, 2, 2))
    documents, core = Documents.at(places(TOKENS, end=END), CONFIG), Core()
    packed = core(query, key, value, documents=documents)
    packed.square().sum().backward()
    for row, span in spans():
        alone = [each[row : row + 1, :, span].detach().requires_grad_() for each in (query, key, value)]
        mixed = core(*alone)
        assert torch.equal(packed[row : row + 1, :, span], mixed)
        mixed.square().sum().backward()
        for whole, part in zip((query, key, value), alone, strict=True):
            assert whole.grad is not None
            assert part.grad is not None
            assert torch.equal(whole.grad[row : row + 1, :, span], part.grad)


def test_a_token_changes_nothing_in_other_documents() -> None:
    model, arguments = make(), document_arguments(TOKENS, end=END)
    changed = TOKENS.clone()
    changed[0, 1] = 9
    apart = (model(TOKENS, **arguments) - model(changed, **arguments)).abs().amax(dim=2)
    assert torch.all(apart[0, 1:3] > 1e-5)
    apart[0, 1:3] = 0.0
    assert not apart.any()


def loss_of(model: GPT, tokens: Tensor, targets: Tensor, **arguments: Tensor) -> Tensor:
    """Loss summed over tokens."""
    return functional.cross_entropy(model(tokens, **arguments).flatten(0, 1), targets.flatten(), reduction="sum")


@pytest.mark.parametrize("mode", ["none", "pointwise", "selective", "full"])
@pytest.mark.parametrize("experts", [None, ExpertsConfig(number=4, top_k=2, ffn=24, balance=0.0)], ids=["dense", "moe"])
def test_training_on_packed_documents_equals_training_on_each_alone(experts: ExpertsConfig | None, mode: str) -> None:
    """Losses and gradients of the documents add up."""
    packed, alone = make(experts), make(experts)
    apply_recompute(packed, mode)  # type: ignore[arg-type]
    targets = TOKENS.roll(-1, dims=1)
    loss = loss_of(packed, TOKENS, targets, **document_arguments(TOKENS, end=END))
    loss.backward()
    total = 0.0
    for row, span in spans():
        alone_loss = loss_of(alone, TOKENS[row : row + 1, span], targets[row : row + 1, span])
        alone_loss.backward()
        total += alone_loss.item()
    assert loss.item() == pytest.approx(total, rel=1e-6)
    for (name, parameter), other in zip(packed.named_parameters(), alone.parameters(), strict=True):
        assert parameter.grad is not None, name
        torch.testing.assert_close(parameter.grad, other.grad, atol=2e-6, rtol=1e-5)


def test_one_document_per_sequence_equals_no_packing() -> None:
    model, tokens = make(), TOKENS.masked_fill(TOKENS == END, 1)
    assert torch.equal(model(tokens, **document_arguments(tokens, end=END)), model(tokens))


def test_rotary_positions_restart_in_each_document() -> None:
    cos, sin = Documents.at(places(TOKENS, end=END), replace(CONFIG, rope_theta=1.0)).rotation
    assert cos.shape == sin.shape == (3, 1, 8, 4)
    torch.testing.assert_close(cos[0, 0, :, 0], torch.tensor([0.0, 1.0, 2.0, 0.0, 0.0, 1.0, 2.0, 3.0]).cos())
    torch.testing.assert_close(sin[2, 0, :, 3], torch.tensor([0.0, 0.0, 1.0, 2.0, 0.0, 1.0, 0.0, 1.0]).sin())
