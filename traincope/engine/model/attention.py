"""Causal grouped-query attention with rotary positions (Ainslie et al. 2023, arXiv:2305.13245).

Shapes: B sequences of S tokens, H hidden channels.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from traincope.engine.config import ModelConfig
from traincope.engine.model.documents import Documents
from traincope.engine.model.rotary import Positions, rotate, rotation_table


class Attention(nn.Module):
    """Query, key, value and output projections around a core without weights."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_size = config.hidden // config.heads
        self.theta = config.rope_theta
        self.query = nn.Linear(config.hidden, config.hidden, bias=False)
        self.key = nn.Linear(config.hidden, config.kv_heads * self.head_size, bias=False)
        self.value = nn.Linear(config.hidden, config.kv_heads * self.head_size, bias=False)
        self.out = nn.Linear(config.hidden, config.hidden, bias=False)
        self.core: nn.Module = Core()
        self.positions: Positions | None = None
        """Positions of this rank's tokens in the sequence. None: all positions, in order."""

    def forward(self, x: Tensor, *, documents: Documents | None = None) -> Tensor:
        """(B, S, H) -> (B, S, H). `documents` None: each sequence is one document."""
        query, key, value = (self._heads(layer(x)) for layer in (self.query, self.key, self.value))
        if documents is None:
            positions = self.positions or (range(x.shape[1]),)
            table = rotation_table(*positions, head_size=self.head_size, theta=self.theta, device=x.device)
        else:
            table = documents.rotation
        mixed = self.core(rotate(query, table), rotate(key, table), value, documents=documents)
        result: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return result

    def _heads(self, x: Tensor) -> Tensor:
        """(B, S, heads x head_size) -> (B, heads, S, head_size)."""
        return x.view(*x.shape[:2], -1, self.head_size).transpose(1, 2)


class Core(nn.Module):
    """Scores, softmax and mixing: the part that selective recomputation repeats.

    It is a module because recomputation is configured per module; see `recompute`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.attend: Callable[[Tensor, Tensor, Tensor], Tensor] = causal_attention
        """Attention function: query, key and value of these tokens -> output of these tokens."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *, documents: Documents | None = None) -> Tensor:
        """All tensors are (B, heads, S, head_size). Keys and values may have fewer heads."""
        if documents is None:
            return self.attend(query, key, value)
        return _by_document(self.attend, query, key, value, lengths=documents.lengths)


def _by_document(
    attend: Callable[[Tensor, Tensor, Tensor], Tensor], *tensors: Tensor, lengths: tuple[tuple[int, ...], ...]
) -> Tensor:
    """Attend to each document separately, so that no product and no rounding mixes documents."""
    mixed = [
        attend(*document).transpose(1, 2)
        for sequence, *pieces in zip(lengths, *(tensor.split(1) for tensor in tensors), strict=True)
        for document in zip(*(piece.split(sequence, dim=2) for piece in pieces), strict=True)
    ]
    sequences, _, tokens, _ = tensors[0].shape
    whole: Tensor = torch.cat(mixed, dim=1).squeeze(0).unflatten(0, (sequences, tokens)).transpose(1, 2)
    return whole


def causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Compute softmax(q k^T / sqrt(d)) v.

    All tensors are (B, heads, S, d). Keys and values may have fewer heads.
    """
    return functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, enable_gqa=query.shape[1] != key.shape[1]
    )
