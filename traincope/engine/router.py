"""Which experts a token passes, and what keeps the choice even.

A softmax over all experts, of which the `top_k` most probable are taken and weighted by their share
of what was taken (Shazeer et al. 2017, arXiv:1701.06538; as in Mixtral, Jiang et al. 2024,
arXiv:2401.04088); a single one by its probability, for its share would be 1 whatever the router says,
and teach it nothing (Fedus et al. 2021, arXiv:2101.03961, section 2.1). All in fp32 (there, section 2.4),
weights too, as `sharded` gathers them; only ZeRO++'s int8 gathers round them, as they do all others.
"""

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from traincope.engine.config import ExpertsConfig
from traincope.engine.local import replicated_part

CERTAIN = 2.0
"""More than any probability."""


class Routing(NamedTuple):
    """Of B sequences of S tokens, k experts each. A tuple, for in one FSDP finds what a module returns."""

    chosen: Tensor
    """Numbers of the experts, (B, S, k), the likeliest first."""
    weights: Tensor
    """What each adds, fp32 (B, S, k): summing to 1, or the one expert's probability."""


class Router(nn.Module):
    """Scores every expert for every token."""

    def __init__(self, config: ExpertsConfig, *, hidden: int) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(config.number, hidden))
        self.loss_share = 1.0
        """Of a step's loss, which is a mean over pieces, the share that one forward stands for."""
        self.sequence_group: dist.ProcessGroup | None = None
        """The ranks that have the other tokens of these sequences."""

    def forward(self, x: Tensor) -> Routing:
        """Activations (B, S, H); backward adds the balance loss to what it is given."""
        with torch.autocast(x.device.type, enabled=False):
            probabilities = functional.linear(x.float(), replicated_part(self.weight).float()).softmax(dim=-1)
        chosen = self._choose(probabilities.detach())
        if self.config.balance and torch.is_grad_enabled():
            loss = balance_loss(probabilities, chosen, group=self.sequence_group)
            probabilities = _WithLoss.apply(probabilities, self.config.balance * self.loss_share * loss)
        weights = probabilities.gather(-1, chosen)
        if self.config.top_k > 1:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return Routing(chosen=chosen, weights=weights)

    def _choose(self, probabilities: Tensor) -> Tensor:
        if self.config.hot_expert is not None:
            hot = torch.tensor(self.config.hot_expert, device=probabilities.device)
            probabilities = probabilities.index_fill(-1, hot, CERTAIN)
        return probabilities.topk(self.config.top_k, dim=-1).indices


def balance_loss(probabilities: Tensor, chosen: Tensor, *, group: dist.ProcessGroup | None = None) -> Tensor:
    """Mean over sequences of E sum_e f_e P_e: 1 where all E experts are chosen alike, up to E / k where few are.

    Of a sequence's choices f_e is the share that fell on expert e, P_e the mean of its probability;
    (B, S, E) and (B, S, k). By sequence (DeepSeek-AI 2024, arXiv:2412.19437, equations 17 to 20) it is
    the same however a batch is cut into ranks and microbatches; `group` has the rest of each sequence.
    """
    sequences, tokens, experts = probabilities.shape
    counts = _counts(chosen.flatten(1), experts=experts)
    if group is not None:
        dist.all_reduce(counts, group=group)
    ranks = 1 if group is None else dist.get_world_size(group)
    shares = counts / (ranks * tokens * chosen.shape[-1])
    return experts * (shares * probabilities.mean(dim=1)).sum() / sequences


def _counts(chosen: Tensor, *, experts: int) -> Tensor:
    """Choices (B, N) -> how often each expert is among them, fp32 (B, E)."""
    ones = torch.ones(chosen.shape, device=chosen.device)
    return torch.zeros(chosen.shape[0], experts, device=chosen.device).scatter_add(1, chosen, ones)


class _WithLoss(torch.autograd.Function):
    """Values as they are; in backward a loss beside them has gradient 1, wherever in a model or a pipeline it stands.

    As Megatron-LM's MoEAuxLossAutoScaler.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, loss: Tensor) -> Tensor:  # noqa: ARG004 - torch calls it so
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG004
        return gradient, gradient.new_ones(())
