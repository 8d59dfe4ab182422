"""A mixture of experts in place of a feed-forward: each token passes the few experts that a router chose.

Shapes: B sequences of S tokens, H channels, E experts of F inner channels, k experts per token.
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from traincope.engine.config import ExpertsConfig
from traincope.engine.model.expert_load import LoadCounter
from traincope.engine.model.router import Router
from traincope.engine.model.slots import Slots, assign
from traincope.engine.precision.grouped_products import GroupedProduct
from traincope.engine.ranks.local import local_part


class Experts(nn.Module):
    """SwiGLU feed-forwards (Shazeer 2020, arXiv:2002.05202) computed by one grouped product."""

    def __init__(self, config: ExpertsConfig, *, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.empty(config.number, hidden, config.ffn))
        self.up = nn.Parameter(torch.empty(config.number, hidden, config.ffn))
        self.down = nn.Parameter(torch.empty(config.number, config.ffn, hidden))
        self.gate_product, self.up_product, self.down_product = (GroupedProduct() for _ in range(3))

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Rows (N, H), ordered by the experts on this rank, `counts` rows each -> (N, H)."""
        ends = counts.cumsum(0, dtype=torch.int32)
        gate, up, down = (local_part(weight).to(rows.dtype) for weight in (self.gate, self.up, self.down))
        inner = functional.silu(self.gate_product(rows, gate, ends)) * self.up_product(rows, up, ends)
        result: Tensor = self.down_product(inner, down, ends)
        return result


def assign_whole_sequences(chosen: Tensor, *, config: ExpertsConfig) -> Slots:
    """Assign rows to choices (B, S, k) of whole sequences."""
    return assign(chosen, experts=config.number, capacity=config.capacity(chosen.shape[1]))


def run_local_experts(experts: Experts, rows: Tensor, slots: Slots) -> Tensor:
    """Run rows through experts that are all on this rank."""
    result: Tensor = experts(rows, slots.counts)
    return result


class MixtureOfExperts(nn.Module):
    """Router, experts, and optionally a feed-forward that all tokens share (DeepSeekMoE, arXiv:2401.06066)."""

    def __init__(self, config: ExpertsConfig, *, hidden: int, shared: nn.Module | None = None) -> None:
        super().__init__()
        self.config = config
        self.router = Router(config, hidden=hidden)
        self.experts = Experts(config, hidden=hidden)
        self.shared = shared
        self.assign: Callable[[Tensor], Slots] = functools.partial(assign_whole_sequences, config=config)
        """Assigns rows to choices (B, S, k)."""
        self.run_experts: Callable[[Experts, Tensor, Slots], Tensor] = run_local_experts
        """Sends rows to their experts and returns the results."""
        self.enter: Callable[[Tensor], Tensor] = _identity
        """Local part of the residual stream -> whole sequences."""
        self.leave: Callable[[Tensor], Tensor] = _identity
        """Output of these experts, or parts of experts -> local part of the residual stream."""
        self.load = LoadCounter(config.number)

    def forward(self, x: Tensor) -> Tensor:
        """(B, S, H) -> (B, S, H), or the local part of both."""
        mixed = self.leave(self._routed(self.enter(x)))
        return mixed if self.shared is None else mixed + self.shared(x)

    def _routed(self, x: Tensor) -> Tensor:
        routing = self.router(x)
        slots = self.assign(routing.chosen)
        if self.training:
            self.load.count(slots)
        rows = slots.to_rows(x.flatten(0, 1).to(_product_dtype(x)))
        passed = slots.from_rows(self.run_experts(self.experts, rows, slots)).view(*routing.weights.shape, -1)
        mixed: Tensor = (passed * routing.weights.unsqueeze(-1)).sum(dim=2).to(passed.dtype)
        return mixed


def _identity(x: Tensor) -> Tensor:
    return x


def _product_dtype(x: Tensor) -> torch.dtype:
    """Dtype of matrix products under autocast, which covers linear layers but not the grouped product."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
