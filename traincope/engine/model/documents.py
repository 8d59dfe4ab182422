"""Documents packed end to end in sequences. Attention stays within a document, and positions restart in each.

The text is cut into sequences at fixed lengths, so a sequence may begin inside a document; the rest of it counts as a
document. The token that ends a document belongs to it and learns to predict the first token of the next.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

from traincope.engine.config import ModelConfig
from traincope.engine.model.rotary import Rotation, rotation_table


def places(tokens: Tensor, *, end: int) -> Tensor:
    """Tokens (B, S) -> place of each token in its document, int64 (B, S).

    A document's last token is `end`.
    """
    begins = functional.pad(tokens[:, :-1] == end, (1, 0), value=True)
    place = torch.arange(tokens.shape[1], device=tokens.device)
    return place - torch.where(begins, place, 0).cummax(dim=1).values


def document_arguments(tokens: Tensor, *, end: int | None) -> dict[str, Tensor]:
    """Keyword arguments for a model on tokens (B, S). Empty if attention sees whole sequences."""
    return {} if end is None else {"places": places(tokens, end=end)}


def squared_lengths(tokens: Tensor, *, end: int | None) -> int:
    """Sum of squared lengths over the documents in tokens (B, S), or over whole sequences.

    It uses L^2 = 1 + 3 + ... + (2 L - 1).
    """
    sequences, length = tokens.shape
    return sequences * length**2 if end is None else int((2 * places(tokens, end=end) + 1).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """The documents of a batch, in the form that attention needs."""

    lengths: tuple[tuple[int, ...], ...]
    """Document lengths, sequence by sequence."""
    rotation: Rotation
    """Rotation of each token by its place in its document."""

    @classmethod
    def at(cls, places: Tensor, config: ModelConfig) -> Self:
        """Build from `places` (B, S).

        The host reads the lengths: on a GPU it waits for the device once per forward.
        """
        size = config.hidden // config.heads
        table = rotation_table(range(places.shape[1]), head_size=size, theta=config.rope_theta, device=places.device)
        cos, sin = (part[places].unsqueeze(1) for part in table)
        return cls(lengths=_lengths(places), rotation=(cos, sin))


def _lengths(places: Tensor) -> tuple[tuple[int, ...], ...]:
    """Document lengths of each sequence: a document is one longer than the place of its last token."""
    last = functional.pad(places[:, 1:] == 0, (0, 1), value=True)
    counts: list[int] = last.sum(dim=1).tolist()
    return tuple(tuple(lengths.tolist()) for lengths in (places[last] + 1).split(counts))
