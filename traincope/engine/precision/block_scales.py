"""Scales of blocks of numbers, from the numbers themselves (DeepSeek-AI 2024, arXiv:2412.19437, section 3.3.2).

Inputs and gradients have one scale per 128 numbers along the dim that their product sums over; weights one per 128 x
128. An outlier so costs precision in its own block only, and E4M3 suffices for gradients too. Scales are powers of two.
So an input that is kept in 1 x 128 blocks for backward, where the sum runs over tokens, is rounded to 128 x 1 blocks
without another error, except for numbers that are tiny in their new block.

Blocks are those of the tensors that a rank multiplies: tensor parallelism splits a matrix before it has blocks, and
blocks of tokens are those of a microbatch. The last block of a dim may be smaller. Blocks of experts' rows may contain
rows of two experts.
"""

import torch
from torch import Tensor
from torch.nn import functional

from traincope.engine.precision.scales import Rounded, power_of_two_scale, round_to, spread


class BlockOperand:
    """One operand of one layer: its type and its blocks. It has no history."""

    def __init__(self, dtype: torch.dtype, *, side: int, square: bool) -> None:
        """Blocks of `side` numbers along the dim that is summed over, or of `side` x `side`."""
        self.dtype = dtype
        self._side = side
        self._square = square

    def scale(self, numbers: Tensor) -> Tensor:
        """A scale for each of `numbers` (..., K), if their last dim is summed over."""
        rows = numbers.flatten(0, -2)
        block = self._block(along=-1)
        return spread(block_scale(rows, self.dtype, block), block, rows.shape).view(numbers.shape)

    def record(self, numbers: Tensor) -> None:
        """Do nothing: later steps do not depend on `numbers`."""

    def rounded(self, numbers: Tensor, *, along: int = -1) -> Rounded:
        """Round matrices (..., N, K) in blocks along the dim `along`, -1 or -2."""
        block = self._block(along=along)
        scale = block_scale(numbers, self.dtype, block)
        values = round_to(numbers, self.dtype, spread(scale, block, numbers.shape)).values
        return Rounded(values, scale, block)

    def turned(self, rounded: Rounded) -> Rounded:
        """The same numbers in blocks along the other dim."""
        return self.rounded(rounded.wide(), along=-2)

    def _block(self, *, along: int) -> tuple[int, int]:
        if self._square:
            return self._side, self._side
        return (1, self._side) if along == -1 else (self._side, 1)


def block_scale(numbers: Tensor, dtype: torch.dtype, block: tuple[int, int]) -> Tensor:
    """One scale for each block of matrices (..., N, K), fp32 (..., ceil(N / rows), ceil(K / columns)).

    1 for a block with an infinity or a NaN.
    """
    rows, columns = block
    down, across = -(-numbers.shape[-2] // rows), -(-numbers.shape[-1] // columns)
    missing = (0, across * columns - numbers.shape[-1], 0, down * rows - numbers.shape[-2])
    padded = functional.pad(numbers.detach().float().abs(), missing)
    blocks = padded.unflatten(-1, (across, columns)).unflatten(-3, (down, rows))
    return power_of_two_scale(blocks.amax(dim=(-3, -1)).nan_to_num(nan=0.0, posinf=0.0), dtype)
