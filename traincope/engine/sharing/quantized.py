"""Numbers as blocks of int8 that share a scale, as sent on the wire.

Symmetric block-wise quantization after Dettmers et al. 2022, arXiv:2110.02861. A message holds the blocks' scales in
fp32, then their numbers: (block + 4) bytes for each block, also for a partial one. The error of a number is at most max
|block| / 254.
"""

import torch
from torch import Tensor
from torch.nn import functional

LARGEST = 127
SCALE_BYTES = 4


def message_bytes(count: int, *, block: int) -> int:
    """Bytes of a message of `count` numbers."""
    return -(-count // block) * (block + SCALE_BYTES)


def quantize(numbers: Tensor, *, block: int) -> Tensor:
    """(rows, count) of any floating type -> messages, uint8 (rows, message_bytes). `block` is a multiple of 4.

    A block with an infinity or NaN returns as NaN, so that an overflow is visible.
    """
    rows, count = numbers.shape
    blocks = functional.pad(numbers.float(), (0, -count % block)).view(rows, -1, block)
    scales = blocks.abs().amax(dim=2) / LARGEST
    divisors = torch.where(scales == 0.0, 1.0, scales).unsqueeze(2)
    whole = torch.nan_to_num(blocks / divisors).round().to(torch.int8)
    return torch.cat((scales.view(torch.uint8), whole.view(torch.uint8).flatten(1)), dim=1)


def dequantize(messages: Tensor, *, count: int, block: int) -> Tensor:
    """Messages -> fp32 (rows, count)."""
    num_blocks = -(-count // block)
    scales, numbers = messages.split((num_blocks * SCALE_BYTES, num_blocks * block), dim=1)
    scales = scales.contiguous().view(torch.float32).unsqueeze(2)
    blocks = numbers.contiguous().view(torch.int8).view(len(messages), num_blocks, block)
    values: Tensor = blocks * scales
    return values.flatten(1)[:, :count]
