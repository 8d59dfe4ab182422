"""A mixture of experts in place of a feed-forward: every token passes the few that a router chose for it.

Shapes: B sequences of S tokens, H channels, E experts of F inner channels, k of them a token.
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from traincope.engine.config import ExpertsConfig
from traincope.engine.expert_load import LoadCounter
from traincope.engine.local import local_part
from traincope.engine.router import Router
from traincope.engine.slots import Slots, assign


class Experts(nn.Module):
    """SwiGLU feed-forwards side by side (Shazeer 2020, arXiv:2002.05202), one grouped product for all of them."""

    def __init__(self, config: ExpertsConfig, *, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.empty(config.number, hidden, config.ffn))
        self.up = nn.Parameter(torch.empty(config.number, hidden, config.ffn))
        self.down = nn.Parameter(torch.empty(config.number, config.ffn, hidden))

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Rows (N, H) in the order of the experts that are here, `counts` of them each -> (N, H)."""
        ends = counts.cumsum(0, dtype=torch.int32)
        gate, up, down = (local_part(weight).to(rows.dtype) for weight in (self.gate, self.up, self.down))
        inner = functional.silu(functional.grouped_mm(rows, gate, offs=ends))
        return functional.grouped_mm(inner * functional.grouped_mm(rows, up, offs=ends), down, offs=ends)


def of_whole_sequences(chosen: Tensor, *, config: ExpertsConfig) -> Slots:
    """Rows for choices (B, S, k) that are all there are in their sequences."""
    return assign(chosen, experts=config.number, capacity=config.capacity(chosen.shape[1]))


def all_here(experts: Experts, rows: Tensor, slots: Slots) -> Tensor:
    """Rows through experts that are all on this rank."""
    result: Tensor = experts(rows, slots.counts)
    return result


class MixtureOfExperts(nn.Module):
    """Router, experts, and perhaps a feed-forward that all tokens share (DeepSeekMoE, arXiv:2401.06066)."""

    def __init__(self, config: ExpertsConfig, *, hidden: int, shared: nn.Module | None = None) -> None:
        super().__init__()
        self.config = config
        self.router = Router(config, hidden=hidden)
        self.experts = Experts(config, hidden=hidden)
        self.shared = shared
        self.assign: Callable[[Tensor], Slots] = functools.partial(of_whole_sequences, config=config)
        """Rows for choices (B, S, k)."""
        self.through: Callable[[Experts, Tensor, Slots], Tensor] = all_here
        """How rows reach their experts and come back."""
        self.enter: Callable[[Tensor], Tensor] = _as_it_is
        """What is here of the residual stream -> whole sequences."""
        self.leave: Callable[[Tensor], Tensor] = _as_it_is
        """What these experts, or parts of experts, give -> what is here of the stream."""
        self.load = LoadCounter(config.number)

    def forward(self, x: Tensor) -> Tensor:
        """(B, S, H) -> (B, S, H), or what is here of both."""
        mixed = self.leave(self._routed(self.enter(x)))
        return mixed if self.shared is None else mixed + self.shared(x)

    def _routed(self, x: Tensor) -> Tensor:
        routing = self.router(x)
        slots = self.assign(routing.chosen)
        if self.training:
            self.load.count(slots)
        rows = slots.put(x.flatten(0, 1).to(_product_dtype(x)))
        passed = slots.take(self.through(self.experts, rows, slots)).view(*routing.weights.shape, -1)
        mixed: Tensor = (passed * routing.weights.unsqueeze(-1)).sum(dim=2).to(passed.dtype)
        return mixed


def _as_it_is(x: Tensor) -> Tensor:
    return x


def _product_dtype(x: Tensor) -> torch.dtype:
    """What matrix products run in here: autocast knows linear layers, but no grouped product."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
