"""The router: it chooses the experts of each token, and an auxiliary loss balances the choice.

A softmax over all experts. The `top_k` most probable are chosen and weighted by their share of the chosen probability
(Shazeer et al. 2017, arXiv:1701.06538; as in Mixtral, Jiang et al. 2024, arXiv:2401.04088). A single expert is weighted
by its probability: its share would always be 1 and give the router no gradient (Fedus et al. 2021, arXiv:2101.03961,
section 2.1). All of it is fp32 (section 2.4 there), also the weights as `sharded` gathers them. Only ZeRO++'s int8
gathers round them, as they round all parameters.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from traincope.engine.config import ExpertsConfig
from traincope.engine.ranks.local import replicated_part

CERTAIN = 2.0
"""A value above any probability."""


class Routing(NamedTuple):
    """Choices of k experts per token, for B sequences of S tokens.

    It is a tuple because FSDP finds the tensors of a module's result in tuples.
    """

    chosen: Tensor
    """Numbers of the experts, (B, S, k), the most probable first."""
    weights: Tensor
    """Weight of each expert's output, fp32 (B, S, k). The weights sum to 1; a single expert has its probability."""


class Router(nn.Module):
    """Scores each expert for each token."""

    def __init__(self, config: ExpertsConfig, *, hidden: int) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(config.number, hidden))
        self.loss_share = 1.0
        """Share of the step's loss that one forward stands for; the step's loss is a mean over pieces."""
        self.scaled: Callable[[Tensor], Tensor] = _unscaled
        """Gives the balance loss the scale that fp16 gives the loss of the tokens."""
        self.sequence_group: dist.ProcessGroup | None = None
        """Ranks that have the other tokens of these sequences."""

    def forward(self, x: Tensor) -> Routing:
        """Activations (B, S, H) -> choices. Backward adds the balance loss's gradient."""
        with torch.autocast(x.device.type, enabled=False):
            probabilities = functional.linear(x.float(), replicated_part(self.weight).float()).softmax(dim=-1)
        chosen = self._choose(probabilities.detach())
        if self.config.balance and torch.is_grad_enabled():
            loss = balance_loss(probabilities, chosen, group=self.sequence_group)
            share = self.scaled(self.config.balance * self.loss_share * loss)
            probabilities = _AddLoss.apply(probabilities, share)
        weights = probabilities.gather(-1, chosen)
        if self.config.top_k > 1:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return Routing(chosen=chosen, weights=weights)

    def _choose(self, probabilities: Tensor) -> Tensor:
        if self.config.hot_expert is not None:
            hot = torch.tensor(self.config.hot_expert, device=probabilities.device)
            probabilities = probabilities.index_fill(-1, hot, CERTAIN)
        return probabilities.topk(self.config.top_k, dim=-1).indices


def _unscaled(loss: Tensor) -> Tensor:
    return loss


def balance_loss(probabilities: Tensor, chosen: Tensor, *, group: dist.ProcessGroup | None = None) -> Tensor:
    """Mean over sequences of E sum_e f_e P_e: 1 if all E experts are chosen equally, up to E / k if few are.

    For each sequence, f_e is the share of choices that fell on expert e and P_e the mean of its probability. Shapes (B,
    S, E) and (B, S, k). Because it is computed per sequence (DeepSeek-AI 2024, arXiv:2412.19437, equations 17 to 20),
    it does not depend on how a batch is split into ranks and microbatches. `group` has the rest of each sequence.
    """
    sequences, tokens, experts = probabilities.shape
    counts = _counts(chosen.flatten(1), experts=experts)
    if group is not None:
        dist.all_reduce(counts, group=group)
    ranks = 1 if group is None else dist.get_world_size(group)
    shares = counts / (ranks * tokens * chosen.shape[-1])
    return experts * (shares * probabilities.mean(dim=1)).sum() / sequences


def _counts(chosen: Tensor, *, experts: int) -> Tensor:
    """Choices (B, N) -> number of choices of each expert, fp32 (B, E)."""
    ones = torch.ones(chosen.shape, device=chosen.device)
    return torch.zeros(chosen.shape[0], experts, device=chosen.device).scatter_add(1, chosen, ones)


class _AddLoss(torch.autograd.Function):
    """Pass values through; backward gives the attached loss a gradient of 1.

    This works anywhere in a model or pipeline, as in Megatron-LM's MoEAuxLossAutoScaler.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, loss: Tensor) -> Tensor:  # noqa: ARG004 - torch calls it so
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG004
        return gradient, gradient.new_ones(())
