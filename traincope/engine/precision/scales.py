"""Scales of tensors that are rounded to fp8: one number per tensor, from the largest magnitudes of earlier steps.

This is delayed scaling (Micikevicius et al. 2022, arXiv:2209.05433, section 3; Transformer Engine's recipe). The scale
is the largest power of two that takes the largest number of the history into the format, so scaling rounds nothing.
A larger number saturates in that step and enters the history at its end. Before a history exists, each tensor is scaled
by its own largest number.

All ranks that hold a part of a layer, or another slice of the batch, have the same history. So it belongs to the layer
and not to a rank, and a checkpoint keeps it by the layer's name.

`block_scales` has scales of blocks of numbers, without a history.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from traincope.engine.ranks.mesh import BATCH_AXES, REPLICAS_AND_CONTEXT, SHARDS_AND_CONTEXT, Layout

LARGEST_SCALE = 2.0**100
"""Limit for tensors of tiny numbers, whose scale would overflow."""
SHARING_AXES = (*BATCH_AXES, REPLICAS_AND_CONTEXT, SHARDS_AND_CONTEXT, "tp")
"""Axes whose ranks work on the same layers."""


class Rounded(NamedTuple):
    """A tensor in a narrow type: its numbers are `values` / `scale`."""

    values: Tensor
    scale: Tensor
    """fp32 scalar, or one number for each block (..., rows, columns)."""
    block: tuple[int, int] | None = None
    """Rows and columns of a block. None: the scale is a scalar."""

    def wide(self) -> Tensor:
        """The numbers in fp32, exactly."""
        return self.values.float() / spread(self.scale, self.block, self.values.shape)

    def transposed(self) -> "Rounded":
        """The same with the last two dims exchanged."""
        if self.block is None:
            return Rounded(self.values.mT, self.scale)
        return Rounded(self.values.mT, self.scale.mT, self.block[::-1])


def spread(scale: Tensor, block: tuple[int, int] | None, shape: torch.Size) -> Tensor:
    """The scale of each number of a tensor of this shape, or the scalar."""
    if block is None:
        return scale
    each = scale.repeat_interleave(block[0], dim=-2).repeat_interleave(block[1], dim=-1)
    return each[..., : shape[-2], : shape[-1]]


class Operand:
    """One operand of one layer: its type and its history."""

    def __init__(self, dtype: torch.dtype, *, steps: int, device: torch.device) -> None:
        self.dtype = dtype
        self.history = torch.zeros(steps, device=device)
        """Largest finite magnitude of each of the last steps, the newest first; 0 where there was no step."""
        self.amax = torch.zeros((), device=device)
        """Largest finite magnitude of this step so far, on this rank."""

    def scale(self, numbers: Tensor) -> Tensor:
        """The scale for `numbers` in this step, fp32 scalar."""
        known = self.history.max()
        return power_of_two_scale(torch.where(known > 0, known, largest_finite(numbers)), self.dtype)

    def rounded(self, numbers: Tensor, *, along: int = -1) -> Rounded:  # noqa: ARG002 - as blocks have it
        """Round `numbers` with one scale, whatever dim a product sums over."""
        return round_to(numbers, self.dtype, self.scale(numbers))

    def turned(self, rounded: Rounded) -> Rounded:
        """The same numbers for a product that sums over the other dim."""
        return rounded

    def record(self, numbers: Tensor) -> None:
        """Let the scales of later steps follow `numbers`."""
        self.amax = torch.maximum(self.amax, largest_finite(numbers))

    def end_step(self, amax: Tensor) -> None:
        """Put the step's largest magnitude on all ranks into the history."""
        self.history.copy_(torch.cat([amax.unsqueeze(0), self.history[:-1]]))
        self.forget()

    def forget(self) -> None:
        """Drop what was recorded since the last step."""
        self.amax = torch.zeros_like(self.amax)


def round_to(numbers: Tensor, dtype: torch.dtype, scale: Tensor) -> Rounded:
    """Scale and round to nearest even. Finite numbers saturate; an infinity becomes NaN, so that it stays visible."""
    largest = torch.finfo(dtype).max
    scaled = numbers.float() * scale
    saturated = torch.where(scaled.isinf(), torch.nan, scaled.clamp(-largest, largest))
    return Rounded(saturated.to(dtype), scale)


def power_of_two_scale(amax: Tensor, dtype: torch.dtype) -> Tensor:
    """Largest power of two that keeps `amax` within the type; 1 for an amax of 0."""
    ratio = (torch.finfo(dtype).max / amax).clamp(max=LARGEST_SCALE)
    exponent = torch.frexp(ratio).exponent - 1
    return torch.where(amax > 0, torch.ldexp(torch.ones_like(amax), exponent), 1.0)


def largest_finite(numbers: Tensor) -> Tensor:
    """Largest magnitude, fp32 scalar; 0 if a number is infinite or NaN, or without numbers."""
    if not numbers.numel():
        return torch.zeros((), device=numbers.device)
    return numbers.detach().abs().amax().float().nan_to_num(nan=0.0, posinf=0.0)


def end_step(operands: Mapping[str, Operand], *, layout: Layout) -> None:
    """Move the step's largest magnitudes into the histories. All ranks must call it together.

    One small all-reduce per mesh axis whose ranks share layers.
    """
    if not operands:
        return
    amaxes = torch.stack([operand.amax for operand in operands.values()])
    for axis in SHARING_AXES:
        group = layout.group(axis)
        if group is not None and group.size() > 1:
            dist.all_reduce(amaxes, op=dist.ReduceOp.MAX, group=group)
    for operand, amax in zip(operands.values(), amaxes, strict=True):
        operand.end_step(amax)
