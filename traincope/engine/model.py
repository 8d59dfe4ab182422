"""A GPT on tokens, whole or the layers of one pipeline stage; parameters are named alike in both.

RMSNorm (Zhang & Sennrich 2019, arXiv:1910.07467), rotary positions (Su et al. 2021,
arXiv:2104.09864), grouped-query attention (Ainslie et al. 2023, arXiv:2305.13245) and SwiGLU
(Shazeer 2020, arXiv:2002.05202), as in Llama. Shapes: B sequences of S tokens, H hidden channels.
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from traincope.engine.config import ExpertsConfig, ModelConfig
from traincope.engine.local import local_part
from traincope.engine.moe import MixtureOfExperts

Positions = tuple[range, ...]
"""Places of tokens in their sequence, piece after piece."""


class GPT(nn.Module):
    """Blocks `layers` of the model; the first stage embeds tokens, the last one predicts them."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        experts: ExpertsConfig | None = None,
        layers: range | None = None,
        autocast: bool = False,
    ) -> None:
        """`layers` None is the whole model; `autocast` computes matrix products in bf16."""
        super().__init__()
        layers = range(config.layers) if layers is None else layers
        self.autocast = autocast
        self.embedding = nn.Embedding(config.vocabulary, config.hidden) if layers.start == 0 else None
        self.blocks = nn.ModuleDict({str(layer): Block(config, experts=experts) for layer in layers})
        last = layers.stop == config.layers
        self.norm = nn.RMSNorm(config.hidden) if last else None
        self.output = nn.Linear(config.hidden, config.vocabulary, bias=False) if last else None
        self.through: Callable[[nn.Module, Tensor], Tensor] = straight
        """How activations pass a block."""

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B, S), or activations (B, S, H) of the stage before -> logits (B, S, V), or activations."""
        with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=self.autocast):
            if self.embedding is not None:
                x = self.embedding(x)
            for block in self.blocks.values():
                x = self.through(block, x)
            if self.norm is not None and self.output is not None:
                x = self.output(self.norm(x))
            return x


def straight(block: nn.Module, x: Tensor) -> Tensor:
    """Activations through a block, all that backward needs being kept."""
    result: Tensor = block(x)
    return result


class Block(nn.Module):
    """Pre-norm attention and feed-forward, each added to the residual stream."""

    def __init__(self, config: ModelConfig, *, experts: ExpertsConfig | None = None) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.hidden)
        self.attention = Attention(config)
        self.feed_forward_norm = nn.RMSNorm(config.hidden)
        self.feed_forward = _feed_forward(config, experts)

    def forward(self, x: Tensor) -> Tensor:
        for norm, part in ((self.attention_norm, self.attention), (self.feed_forward_norm, self.feed_forward)):
            x = x + part(norm(x))
        return x


def _feed_forward(config: ModelConfig, experts: ExpertsConfig | None) -> nn.Module:
    if experts is None:
        return FeedForward(config)
    shared = FeedForward(config) if experts.shared else None
    return MixtureOfExperts(experts, hidden=config.hidden, shared=shared)


class Attention(nn.Module):
    """Causal grouped-query attention with rotary positions."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_size = config.hidden // config.heads
        self.theta = config.rope_theta
        self.query = nn.Linear(config.hidden, config.hidden, bias=False)
        self.key = nn.Linear(config.hidden, config.kv_heads * self.head_size, bias=False)
        self.value = nn.Linear(config.hidden, config.kv_heads * self.head_size, bias=False)
        self.out = nn.Linear(config.hidden, config.hidden, bias=False)
        self.positions: Positions | None = None
        """Of the tokens in the sequence; None: all of it, in order."""
        self.attend: Callable[[Tensor, Tensor, Tensor], Tensor] = causal_attention
        """Query, key and value of these tokens -> what they take from the whole sequence."""

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (self._heads(layer(x)) for layer in (self.query, self.key, self.value))
        positions = self.positions or (range(x.shape[1]),)
        table = rotation_table(*positions, head_size=self.head_size, theta=self.theta, device=x.device)
        mixed = self.attend(rotate(query, table), rotate(key, table), value)
        result: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return result

    def _heads(self, x: Tensor) -> Tensor:
        """(B, S, heads x head_size) -> (B, heads, S, head_size)."""
        return x.view(*x.shape[:2], -1, self.head_size).transpose(1, 2)


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


def causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(d)) v, all (B, heads, S, d); keys and values may have fewer heads."""
    return functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, enable_gqa=query.shape[1] != key.shape[1]
    )


@functools.lru_cache(maxsize=8)
def rotation_table(*positions: range, head_size: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of position x frequency, each fp32 of shape (number of positions, head_size / 2).

    Computed, not a buffer: a buffer would need a value of its own after `to_empty`.
    """
    frequencies = theta ** (-torch.arange(0, head_size, 2, device=device, dtype=torch.float32) / head_size)
    pieces = [torch.arange(piece.start, piece.stop, device=device, dtype=torch.float32) for piece in positions]
    angles = torch.cat(pieces).unsqueeze(1) * frequencies
    return angles.cos(), angles.sin()


def rotate(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """Turn channel i with channel i + head_size / 2 by the position's angle; x is (B, heads, S, head_size)."""
    cos, sin = table
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).type_as(x)


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy in nats, in fp32; logits (B, S, V), whole or cut along V, targets (B, S)."""
    loss = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
    return local_part(loss)
