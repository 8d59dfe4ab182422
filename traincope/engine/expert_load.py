"""How many tokens every expert gets: counted as a model runs, read once a step."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from traincope.engine.slots import Slots
from traincope.engine.torch_private import in_backward


class LoadCounter:
    """One layer's, on this rank since it was last read."""

    def __init__(self, experts: int) -> None:
        self._experts = experts
        self._sums: Tensor | None = None

    def count(self, slots: Slots) -> None:
        """What backward computes again is counted already. The host never waits for it."""
        if in_backward():
            return
        dropped = (slots.row == slots.num_rows).sum().unsqueeze(0)
        sums = torch.cat([slots.routed, slots.counts, dropped])
        self._sums = sums if self._sums is None else self._sums + sums

    def read(self, *, device: torch.device) -> Tensor:
        """Rows taken and rows there of each of the E experts, and choices dropped, (2 E + 1,); counts from 0 again."""
        sums, self._sums = self._sums, None
        return torch.zeros(2 * self._experts + 1, dtype=torch.int64, device=device) if sums is None else sums


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLoad:
    """One layer's share of this rank in a step."""

    layer: int
    tokens: Mapping[int, int]
    """Expert on this rank -> rows that it got, from all ranks that send to it."""
    padding: int
    """Empty rows that were multiplied all the same."""
    dropped: int
    """Choices of this rank's own tokens for which an expert had no row left."""


def expert_loads(
    counters: Mapping[int, LoadCounter], *, group: dist.ProcessGroup | None, device: torch.device
) -> tuple[ExpertLoad, ...]:
    """Of all this rank's layers, by number; one small exchange over `group`, the ranks of `ep`."""
    if not counters:
        return ()
    sums = torch.stack([counter.read(device=device) for counter in counters.values()])
    ranks, rank = (1, 0) if group is None else (dist.get_world_size(group), dist.get_rank(group))
    got, dropped = _arrived(sums[:, :-1], ranks=ranks, group=group).tolist(), sums[:, -1].tolist()
    first = rank * len(got[0][0])
    return tuple(
        ExpertLoad(
            layer=layer,
            tokens=dict(enumerate(routed, start=first)),
            padding=sum(rows) - sum(routed),
            dropped=lost,
        )
        for layer, (routed, rows), lost in zip(counters, got, dropped, strict=True)
    )


def _arrived(sent: Tensor, *, ranks: int, group: dist.ProcessGroup | None) -> Tensor:
    """Rows taken and rows there of each layer's experts, this rank's (L, 2 E) -> its experts', (L, 2, E / ranks)."""
    by_rank: Tensor = sent.unflatten(1, (2, ranks, -1)).movedim(2, 0).contiguous()
    if group is None:
        return by_rank[0]
    arrived = torch.empty_like(by_rank)
    dist.all_to_all_single(arrived, by_rank, group=group)
    return arrived.sum(dim=0)
