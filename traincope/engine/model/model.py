"""A GPT on tokens: the whole model or the layers of one pipeline stage, with the same parameter names.

RMSNorm (Zhang & Sennrich 2019, arXiv:1910.07467), `attention` with rotary positions and SwiGLU (Shazeer 2020,
arXiv:2002.05202), as in Llama. Shapes: B sequences of S tokens, H hidden channels.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from traincope.engine.config import ExpertsConfig, ModelConfig
from traincope.engine.model.attention import Attention
from traincope.engine.model.documents import Documents
from traincope.engine.model.moe import MixtureOfExperts
from traincope.engine.ranks.local import local_part


class GPT(nn.Module):
    """Blocks `layers` of the model. The first stage embeds tokens, the last one predicts them."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        experts: ExpertsConfig | None = None,
        layers: range | None = None,
        is_first: bool = True,
        is_last: bool = True,
        autocast: torch.dtype = torch.float32,
    ) -> None:
        """`layers` None is all layers. `autocast` is the type of matrix products; the weights stay fp32."""
        super().__init__()
        layers = range(config.layers) if layers is None else layers
        self.config = config
        self.autocast = autocast
        self.embedding = nn.Embedding(config.vocabulary, config.hidden) if is_first else None
        self.blocks = nn.ModuleDict({str(layer): Block(config, experts=experts) for layer in layers})
        self.norm = nn.RMSNorm(config.hidden) if is_last else None
        self.output = nn.Linear(config.hidden, config.vocabulary, bias=False) if is_last else None
        self.run_block: dict[str, Callable[..., Tensor]] = dict.fromkeys(self.blocks, run_without_recompute)
        """Layer -> function that runs its block on activations, with documents if there are any."""

    def forward(self, x: Tensor, *, places: Tensor | None = None) -> Tensor:
        """Tokens (B, S), or activations (B, S, H) of the previous stage -> logits (B, S, V), or activations.

        `places` (B, S) is the place of each token in its document; attention then stays within documents.
        """
        arguments = {} if places is None else {"documents": Documents.at(places, self.config)}
        with torch.autocast(x.device.type, dtype=self.autocast, enabled=self.autocast != torch.float32):
            if self.embedding is not None:
                x = self.embedding(x)
            for layer, block in self.blocks.items():
                x = self.run_block[layer](block, x, **arguments)
            if self.norm is not None and self.output is not None:
                x = self.output(self.norm(x))
            return x


def run_without_recompute(block: nn.Module, x: Tensor, **arguments: Documents) -> Tensor:
    """Run a block and keep everything that backward needs."""
    result: Tensor = block(x, **arguments)
    return result


class Block(nn.Module):
    """Pre-norm attention and feed-forward, each added to the residual stream."""

    def __init__(self, config: ModelConfig, *, experts: ExpertsConfig | None = None) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.hidden)
        self.attention = Attention(config)
        self.feed_forward_norm = nn.RMSNorm(config.hidden)
        self.feed_forward = _feed_forward(config, experts)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, *, documents: Documents | None = None) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), documents=documents))
        mixed: Tensor = x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        return mixed


def _feed_forward(config: ModelConfig, experts: ExpertsConfig | None) -> nn.Module:
    if experts is None:
        return FeedForward(config)
    shared = FeedForward(config) if experts.shared else None
    return MixtureOfExperts(experts, hidden=config.hidden, shared=shared)


class FeedForward(nn.Module):
    """SwiGLU: silu(x gate) * (x up), projected down."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.hidden, config.ffn, bias=False)
        self.up = nn.Linear(config.hidden, config.ffn, bias=False)
        self.down = nn.Linear(config.ffn, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return result


Loss = Callable[[Tensor, Tensor], Tensor]
"""Logits and targets -> mean loss; see `next_token_loss`."""


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy in nats, in fp32.

    logits (B, S, V), whole or split along V; targets (B, S).
    """
    loss = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
    return local_part(loss)
