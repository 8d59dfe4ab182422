"""Number of tokens that each expert receives, counted as a model runs and read once per step."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from traincope.engine.model.slots import Slots
from traincope.engine.ranks.torch_private import in_backward


class LoadCounter:
    """Load of one layer on this rank since the last reading."""

    def __init__(self, experts: int) -> None:
        self._experts = experts
        self._sums: Tensor | None = None

    def count(self, slots: Slots) -> None:
        """Add the load of one forward, without a wait of the host.

        Recomputation in backward is not counted again.
        """
        if in_backward():
            return
        dropped = (slots.row == slots.num_rows).sum().unsqueeze(0)
        sums = torch.cat([slots.routed, slots.counts, dropped])
        self._sums = sums if self._sums is None else self._sums + sums

    def read(self, *, device: torch.device) -> Tensor:
        """Return the counts and restart them from 0.

        Shape (2 E + 1,): rows taken and rows available of each of the E experts, then dropped choices.
        """
        sums, self._sums = self._sums, None
        return torch.zeros(2 * self._experts + 1, dtype=torch.int64, device=device) if sums is None else sums


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLoad:
    """Load of one layer on this rank in a step."""

    layer: int
    tokens: Mapping[int, int]
    """Expert on this rank -> rows received from all ranks."""
    padding: int
    """Empty rows that were multiplied anyway."""
    dropped: int
    """Choices of this rank's tokens for which an expert had no free row."""


def expert_loads(
    counters: Mapping[int, LoadCounter], *, group: dist.ProcessGroup | None, device: torch.device
) -> tuple[ExpertLoad, ...]:
    """Loads of all layers on this rank, by layer number. One small exchange over `group`, the ranks of `ep`."""
    if not counters:
        return ()
    sums = torch.stack([counter.read(device=device) for counter in counters.values()])
    ranks, rank = (1, 0) if group is None else (dist.get_world_size(group), dist.get_rank(group))
    received, dropped = _exchange_loads(sums[:, :-1], ranks=ranks, group=group).tolist(), sums[:, -1].tolist()
    first = rank * len(received[0][0])
    return tuple(
        ExpertLoad(
            layer=layer,
            tokens=dict(enumerate(routed, start=first)),
            padding=sum(rows) - sum(routed),
            dropped=num_dropped,
        )
        for layer, (routed, rows), num_dropped in zip(counters, received, dropped, strict=True)
    )


def _exchange_loads(sent: Tensor, *, ranks: int, group: dist.ProcessGroup | None) -> Tensor:
    """Send each rank the rows that were chosen for its experts.

    Rows taken and available per layer and expert, (L, 2 E) of this rank's choices -> (L, 2, E / ranks) of its experts.
    """
    by_rank: Tensor = sent.unflatten(1, (2, ranks, -1)).movedim(2, 0).contiguous()
    if group is None:
        return by_rank[0]
    arrived = torch.empty_like(by_rank)
    dist.all_to_all_single(arrived, by_rank, group=group)
    return arrived.sum(dim=0)
