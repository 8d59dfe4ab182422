"""Rows of a buffer, ordered by expert, that tokens take for their experts.

Without a capacity there are as many rows as choices. With a capacity each expert has the same number of rows for each
sequence. First choices of all tokens take rows before second choices (Lepikhin et al. 2020, arXiv:2006.16668, algorithm
1). Capacity counts per sequence, so that drops do not depend on how a batch is split into ranks and microbatches.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """Rows for the choices of one batch."""

    row: Tensor
    """Row of each choice, (B S k,), in the order of tokens; `num_rows` for a dropped choice."""
    num_rows: int
    counts: Tensor
    """Rows of each expert, (E,), padding included."""
    routed: Tensor
    """Rows of each expert that a token takes, (E,)."""
    even: bool
    """All experts have the same number of rows, whatever was chosen."""

    def to_rows(self, tokens: Tensor) -> Tensor:
        """Tokens (B S, H) -> rows (num_rows, H), one per choice of a token. Padding is zero."""
        each = tokens.repeat_interleave(len(self.row) // len(tokens), dim=0)
        return tokens.new_zeros(self.num_rows + 1, tokens.shape[1]).index_copy(0, self.row, each)[:-1]

    def from_rows(self, rows: Tensor) -> Tensor:
        """Rows (num_rows, H) -> row of each choice, (B S k, H). Dropped choices are zero."""
        return functional.pad(rows, (0, 0, 0, 1)).index_select(0, self.row)


def assign(chosen: Tensor, *, experts: int, capacity: int | None) -> Slots:
    """Assign rows to choices (B, S, k). `capacity`: rows of an expert for a sequence."""
    return _without_capacity(chosen, experts) if capacity is None else _with_capacity(capacity, chosen, experts)


def assign_kept(chosen: Tensor, *, experts: int) -> Slots:
    """Assign rows to choices (B, S, k) that are kept. A choice with the value `experts` is dropped.

    There are as many rows as kept choices. The host waits for their number.
    """
    slots = _without_capacity(chosen, experts + 1)
    counts = slots.counts[:experts]
    num_rows = int(counts.sum())
    return Slots(row=slots.row.clamp(max=num_rows), num_rows=num_rows, counts=counts, routed=counts, even=False)


def _without_capacity(chosen: Tensor, experts: int) -> Slots:
    flat = chosen.flatten()
    order = flat.argsort(stable=True)
    row = torch.empty_like(order).index_copy(0, order, torch.arange(len(flat), device=flat.device))
    counts = torch.zeros(experts, dtype=torch.int64, device=flat.device).scatter_add(0, flat, torch.ones_like(flat))
    return Slots(row=row, num_rows=len(flat), counts=counts, routed=counts, even=False)


def _with_capacity(capacity: int, chosen: Tensor, experts: int) -> Slots:
    """Assign rows with a capacity. Rows lie by expert, sequence and place."""
    sequences, tokens, top_k = chosen.shape
    by_priority = chosen.transpose(1, 2).flatten(1)
    picks = functional.one_hot(by_priority, experts)
    place = (picks.cumsum(dim=1) - 1).gather(2, by_priority.unsqueeze(2)).squeeze(2)
    sequence = torch.arange(sequences, device=chosen.device).unsqueeze(1)
    num_rows = experts * sequences * capacity
    row = torch.where(place < capacity, (by_priority * sequences + sequence) * capacity + place, num_rows)
    return Slots(
        row=row.view(sequences, top_k, tokens).transpose(1, 2).flatten(),
        num_rows=num_rows,
        counts=torch.full((experts,), sequences * capacity, device=chosen.device),
        routed=picks.sum(dim=1).clamp(max=capacity).sum(dim=0),
        even=True,
    )
