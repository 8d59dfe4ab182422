"""Rows by expert: all choices have one, or as many as an expert has room for, first come, first served."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from traincope.engine.config import ExpertsConfig
from traincope.engine.slots import Slots, assign


def test_without_a_capacity_rows_lie_by_expert_and_in_the_order_of_tokens() -> None:
    slots = assign(torch.tensor([[[2, 0], [0, 1]], [[0, 2], [2, 1]]]), experts=4, capacity=None)
    assert slots.counts.tolist() == slots.routed.tolist() == [3, 2, 3, 0]
    assert slots.row.tolist() == [5, 0, 1, 3, 2, 6, 7, 4]
    assert (slots.num_rows, slots.even) == (8, False)


def test_first_choices_get_the_rows_before_second_ones() -> None:
    """Expert 0 has two rows for the sequence; its first token chose it second and loses it to a later first choice."""
    slots = assign(torch.tensor([[[1, 0], [0, 2], [0, 1]]]), experts=3, capacity=2)
    assert slots.row.tolist() == [2, 6, 0, 4, 1, 3]
    assert slots.counts.tolist() == [2, 2, 2]
    assert slots.routed.tolist() == [2, 2, 1]
    assert slots.even


def test_every_sequence_has_rows_of_its_own() -> None:
    slots = assign(torch.tensor([[[0], [0], [0]], [[1], [0], [1]]]), experts=2, capacity=2)
    assert slots.row.tolist() == [0, 1, 8, 6, 2, 7]
    assert slots.routed.tolist() == [3, 2]


def test_what_is_dropped_comes_back_as_zero_and_gets_no_gradient() -> None:
    slots = assign(torch.tensor([[[0], [0], [1]]]), experts=2, capacity=1)
    tokens = torch.tensor([[1.0], [2.0], [3.0]], requires_grad=True)
    back = slots.take(10 * slots.put(tokens))
    assert back.tolist() == [[10.0], [0.0], [30.0]]
    back.sum().backward()
    assert tokens.grad is not None
    assert tokens.grad.tolist() == [[10.0], [0.0], [10.0]]


def test_a_capacity_is_the_fair_share_rounded_up_and_never_more_than_the_sequence() -> None:
    config = ExpertsConfig(number=8, top_k=2, capacity_factor=1.25)
    assert [config.capacity(tokens) for tokens in (16, 20, 64)] == [5, 7, 20]
    assert ExpertsConfig(number=4, top_k=4, capacity_factor=2.0).capacity(16) == 16
    assert ExpertsConfig().capacity(16) is None


@st.composite
def choices(draw: st.DrawFn) -> tuple[torch.Tensor, int]:
    """(B, S, k) distinct experts a token, and how many there are."""
    experts, sequences, tokens = draw(st.integers(1, 6)), draw(st.integers(1, 3)), draw(st.integers(1, 8))
    top_k = draw(st.integers(1, experts))
    each = st.permutations(range(experts)).map(lambda order: order[:top_k])
    chosen = [[draw(each) for _ in range(tokens)] for _ in range(sequences)]
    return torch.tensor(chosen), experts


def taken(slots: Slots) -> torch.Tensor:
    return slots.row[slots.row < slots.num_rows]


@settings(max_examples=60, deadline=None)
@given(choices(), st.one_of(st.none(), st.integers(1, 9)))
def test_a_row_is_taken_once_and_lies_with_its_expert(case: tuple[torch.Tensor, int], capacity: int | None) -> None:
    chosen, experts = case
    slots = assign(chosen, experts=experts, capacity=capacity)
    assert taken(slots).unique().numel() == taken(slots).numel() == slots.routed.sum()
    assert slots.counts.sum() == slots.num_rows
    owner = torch.arange(experts).repeat_interleave(slots.counts)
    kept = slots.row < slots.num_rows
    assert torch.equal(owner[slots.row[kept]], chosen.flatten()[kept])


@settings(max_examples=60, deadline=None)
@given(choices(), st.integers(1, 9))
def test_only_what_finds_its_expert_full_is_dropped(case: tuple[torch.Tensor, int], capacity: int) -> None:
    chosen, experts = case
    slots = assign(chosen, experts=experts, capacity=capacity)
    for sequence, rows in zip(chosen, slots.row.view(chosen.shape), strict=True):
        for expert in range(experts):
            asked = sequence == expert
            assert (rows[asked] < slots.num_rows).sum() == min(asked.sum(), capacity)
