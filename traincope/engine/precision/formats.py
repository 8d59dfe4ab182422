"""The number formats. Master weights, gradients that are summed over ranks, and AdamW's state are fp32 in all of them.

Micikevicius et al. 2018 (arXiv:1710.03740) describe fp32 master weights and the scale of the loss, Micikevicius et al.
2022 (arXiv:2209.05433) E4M3 for forward and E5M2 for gradients. As in DeepSeek-AI 2024 (arXiv:2412.19437, section
3.3.1), only linear layers and experts of the blocks multiply fp8: embedding, attention, router, norms, softmax,
residuals and the output's product stay in the type next to it. Its section 3.3.2 has scales of blocks, and E4M3 for
gradients too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """Number types of a training."""

    compute: torch.dtype
    """Activations, attention, and weights as they are multiplied or gathered."""
    operands: torch.dtype | None = None
    """Inputs and weights of the blocks' linear layers and experts in forward. None: `compute`."""
    gradients: torch.dtype | None = None
    """Gradients that these layers multiply in backward. None: `compute`."""
    block: int | None = None
    """Side of the blocks of an operand that have scales of their own. None: one scale per tensor."""
    scales_loss: bool = False
    """The range of `compute` is too small for gradients, so the loss is scaled."""


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "fp32": Format(compute=torch.float32),
        "bf16": Format(compute=torch.bfloat16),
        "fp16": Format(compute=torch.float16, scales_loss=True),
        "fp8": Format(compute=torch.bfloat16, operands=torch.float8_e4m3fn, gradients=torch.float8_e5m2),
        "fp8_block": Format(
            compute=torch.bfloat16, operands=torch.float8_e4m3fn, gradients=torch.float8_e4m3fn, block=128
        ),
    }
)
"""Name in `train.precision` and `fsdp.reduce` -> the format."""
