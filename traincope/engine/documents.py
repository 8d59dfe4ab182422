"""Documents packed end to end in sequences: attention ends with each, and positions begin anew.

Sequences are cut from the text wherever they come to lie, so each begins a document too: of one that it cuts it has
the rest. The token that ends a document belongs to it, and learns to predict the first of the next.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

from traincope.engine.config import ModelConfig
from traincope.engine.rotary import Rotation, rotation_table


def places(tokens: Tensor, *, end: int) -> Tensor:
    """Tokens (B, S) -> the place of each in its document, int64 (B, S); a document's last token is `end`."""
    begins = functional.pad(tokens[:, :-1] == end, (1, 0), value=True)
    place = torch.arange(tokens.shape[1], device=tokens.device)
    return place - torch.where(begins, place, 0).cummax(dim=1).values


def told_of_documents(tokens: Tensor, *, end: int | None) -> dict[str, Tensor]:
    """What a model is told beside tokens (B, S), by name; nothing where attention sees whole sequences."""
    return {} if end is None else {"places": places(tokens, end=end)}


def squared_lengths(tokens: Tensor, *, end: int | None) -> int:
    """Summed over the documents in tokens (B, S), or over its sequences: L^2 = 1 + 3 + ... + (2 L - 1)."""
    sequences, length = tokens.shape
    return sequences * length**2 if end is None else int((2 * places(tokens, end=end) + 1).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """Those in a batch, as attention needs them."""

    lengths: tuple[tuple[int, ...], ...]
    """Sequence by sequence."""
    rotation: Rotation
    """Of every token by its place."""

    @classmethod
    def at(cls, places: Tensor, config: ModelConfig) -> Self:
        """Of `places` (B, S). The lengths are read on the host: on a GPU this waits for it, once a forward."""
        size = config.hidden // config.heads
        table = rotation_table(range(places.shape[1]), head_size=size, theta=config.rope_theta, device=places.device)
        cos, sin = (part[places].unsqueeze(1) for part in table)
        return cls(lengths=_lengths(places), rotation=(cos, sin))


def _lengths(places: Tensor) -> tuple[tuple[int, ...], ...]:
    """A document is as long as the place after its last token's."""
    last = functional.pad(places[:, 1:] == 0, (0, 1), value=True)
    counts: list[int] = last.sum(dim=1).tolist()
    return tuple(tuple(lengths.tolist()) for lengths in (places[last] + 1).split(counts))
