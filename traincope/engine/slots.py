"""Which row of a buffer, ordered by expert, a token takes for each of its experts.

Without a capacity there are as many rows as choices. With one every expert has the same rows for
every sequence; who comes first gets them, all tokens' first choices before their second ones
(Lepikhin et al. 2020, arXiv:2006.16668, algorithm 1). By sequence, so that what is dropped does not
depend on how a batch is cut into ranks and microbatches.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """Rows for the choices of one batch."""

    row: Tensor
    """Row of each choice, (B S k,), tokens in order; `num_rows` for those that are dropped."""
    num_rows: int
    counts: Tensor
    """Rows of each expert, (E,), padding included."""
    routed: Tensor
    """Of those the ones that a token takes, (E,)."""
    even: bool
    """Whether all experts have the same number of rows, whatever was chosen."""

    def put(self, tokens: Tensor) -> Tensor:
        """Tokens (B S, H) -> rows (num_rows, H), each token as often as it chose; padding is zero."""
        each = tokens.repeat_interleave(len(self.row) // len(tokens), dim=0)
        return tokens.new_zeros(self.num_rows + 1, tokens.shape[1]).index_copy(0, self.row, each)[:-1]

    def take(self, rows: Tensor) -> Tensor:
        """What became of the rows (num_rows, H) -> of each choice, (B S k, H); zero for what was dropped."""
        return functional.pad(rows, (0, 0, 0, 1)).index_select(0, self.row)


def assign(chosen: Tensor, *, experts: int, capacity: int | None) -> Slots:
    """Of choices (B, S, k); `capacity`: rows that an expert has for a sequence."""
    return _as_they_come(chosen, experts) if capacity is None else _within(capacity, chosen, experts)


def rows_of(chosen: Tensor, *, experts: int) -> Slots:
    """Of choices (B, S, k), `experts` in place of those that are dropped: as many rows as are left.

    The host waits for their number.
    """
    slots = _as_they_come(chosen, experts + 1)
    counts = slots.counts[:experts]
    num_rows = int(counts.sum())
    return Slots(row=slots.row.clamp(max=num_rows), num_rows=num_rows, counts=counts, routed=counts, even=False)


def _as_they_come(chosen: Tensor, experts: int) -> Slots:
    flat = chosen.flatten()
    order = flat.argsort(stable=True)
    row = torch.empty_like(order).index_copy(0, order, torch.arange(len(flat), device=flat.device))
    counts = torch.zeros(experts, dtype=torch.int64, device=flat.device).scatter_add(0, flat, torch.ones_like(flat))
    return Slots(row=row, num_rows=len(flat), counts=counts, routed=counts, even=False)


def _within(capacity: int, chosen: Tensor, experts: int) -> Slots:
    """Rows lie by expert, sequence and place."""
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
