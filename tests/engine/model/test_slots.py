"""Rows by expert: without a capacity each choice has one; with a capacity earlier choices take rows first."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from traincope.engine.config import ExpertsConfig
from traincope.engine.model.slots import Slots, assign


def test_without_a_capacity_rows_are_ordered_by_expert_and_token() -> None:
    slots = assign(torch.tensor([[[2, 0], [0, 1]], [[0, 2], [2, 1]]]), experts=4, capacity=None)
    assert slots.counts.tolist() == slots.routed.tolist() == [3, 2, 3, 0]
    assert slots.row.tolist() == [5, 0, 1, 3, 2, 6, 7, 4]
    assert (slots.num_rows, slots.even) == (8, False)


def test_first_choices_take_rows_before_second_choices() -> None:
    """Expert 0 has two rows for the sequence. The first token's second choice loses its row to a later first choice."""
    slots = assign(torch.tensor([[[1, 0], [0, 2], [0, 1]]]), experts=3, capacity=2)
    assert slots.row.tolist() == [2, 6, 0, 4, 1, 3]
    assert slots.counts.tolist() == [2, 2, 2]
    assert slots.routed.tolist() == [2, 2, 1]
    assert slots.even


def test_each_sequence_has_its_own_rows() -> None:
    slots = assign(torch.tensor([[[0], [0], [0]], [[1], [0], [1]]]), experts=2, capacity=2)
    assert slots.row.tolist() == [0, 1, 8, 6, 2, 7]
    assert slots.routed.tolist() == [3, 2]


def test_dropped_choices_return_zero_and_get_no_gradient() -> None:
    slots = assign(torch.tensor([[[0], [0], [1]]]), experts=2, capacity=1)
    tokens = torch.tensor([[1.0], [2.0], [3.0]], requires_grad=True)
    returned = slots.from_rows(10 * slots.to_rows(tokens))
    assert returned.tolist() == [[10.0], [0.0], [30.0]]
    returned.sum().backward()
    assert tokens.grad is not None
    assert tokens.grad.tolist() == [[10.0], [0.0], [10.0]]


def test_a_capacity_is_the_rounded_up_fair_share_and_at_most_the_sequence() -> None:
    config = ExpertsConfig(number=8, top_k=2, capacity_factor=1.25)
    assert [config.capacity(tokens) for tokens in (16, 20, 64)] == [5, 7, 20]
    assert ExpertsConfig(number=4, top_k=4, capacity_factor=2.0).capacity(16) == 16
    assert ExpertsConfig().capacity(16) is None


@st.composite
def choices(draw: st.DrawFn) -> tuple[torch.Tensor, int]:
    """Choices (B, S, k) of distinct experts per token, and the number of experts."""
    experts, sequences, tokens = draw(st.integers(1, 6)), draw(st.integers(1, 3)), draw(st.integers(1, 8))
    top_k = draw(st.integers(1, experts))
    each = st.permutations(range(experts)).map(lambda order: order[:top_k])
    chosen = [[draw(each) for _ in range(tokens)] for _ in range(sequences)]
    return torch.tensor(chosen), experts


def taken(slots: Slots) -> torch.Tensor:
    return slots.row[slots.row < slots.num_rows]


@settings(max_examples=60, deadline=None)
@given(choices(), st.one_of(st.none(), st.integers(1, 9)))
def test_each_row_is_taken_once_and_lies_with_its_expert(case: tuple[torch.Tensor, int], capacity: int | None) -> None:
    chosen, experts = case
    slots = assign(chosen, experts=experts, capacity=capacity)
    assert taken(slots).unique().numel() == taken(slots).numel() == slots.routed.sum()
    assert slots.counts.sum() == slots.num_rows
    owner = torch.arange(experts).repeat_interleave(slots.counts)
    kept = slots.row < slots.num_rows
    assert torch.equal(owner[slots.row[kept]], chosen.flatten()[kept])


@settings(max_examples=60, deadline=None)
@given(choices(), st.integers(1, 9))
def test_only_choices_of_full_experts_are_dropped(case: tuple[torch.Tensor, int], capacity: int) -> None:
    chosen, experts = case
    slots = assign(chosen, experts=experts, capacity=capacity)
    for sequence, rows in zip(chosen, slots.row.view(chosen.shape), strict=True):
        for expert in range(experts):
            chose = sequence == expert
            assert (rows[chose] < slots.num_rows).sum() == min(chose.sum(), capacity)
