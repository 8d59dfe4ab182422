"""Rotary positions: query and key channels rotated by angles that grow with a token's position.

Su et al. 2021, arXiv:2104.09864.
"""

import functools

import torch
from torch import Tensor

Positions = tuple[range, ...]
"""Positions of tokens in their sequence, piece after piece."""

Rotation = tuple[Tensor, Tensor]
"""Cosine and sine of each token's angles, fp32 (S, head_size / 2) or (B, 1, S, head_size / 2)."""


@functools.lru_cache(maxsize=8)
def rotation_table(*positions: range, head_size: int, theta: float, device: torch.device) -> Rotation:
    """Cosine and sine of position x frequency, each fp32 of shape (number of positions, head_size / 2).

    The table is computed rather than stored in a buffer, because `to_empty` would leave a buffer without values.
    """
    frequencies = theta ** (-torch.arange(0, head_size, 2, device=device, dtype=torch.float32) / head_size)
    pieces = [torch.arange(piece.start, piece.stop, device=device, dtype=torch.float32) for piece in positions]
    angles = torch.cat(pieces).unsqueeze(1) * frequencies
    return angles.cos(), angles.sin()


def rotate(x: Tensor, table: Rotation) -> Tensor:
    """Rotate channel i with channel i + head_size / 2 by the position's angle. x is (B, heads, S, head_size)."""
    cos, sin = table
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).type_as(x)
