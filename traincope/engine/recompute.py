"""Activation recomputation: what a block keeps for backward, and what backward computes again.

`full` keeps a block's input only (Chen et al. 2016, arXiv:1604.06174). `selective` keeps all but what is made between
queries, keys and values and the output's product (Korthikanti et al. 2022, arXiv:2205.05198, section 5), and computes
attention again. Most of what that saves are scores, which fused attention never keeps: here it saves a block's
attention before its heads are joined, and a number a head and token. `pointwise` is the reverse: it keeps what is dear
to make and small to keep, the outputs of matrix products, attention and communication; norms, rotations and SwiGLU's
pointwise part are computed again.
"""

import functools
from typing import Literal

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from traincope.engine.attention import Attention
from traincope.engine.dispatch import OPERATOR as EXPERTS
from traincope.engine.documents import Documents
from traincope.engine.model import GPT
from traincope.engine.ring_attention import OPERATOR as RING
from traincope.engine.torch_private import dear_operators
from traincope.engine.ulysses import OPERATOR as EXCHANGE

REPEATED = functools.partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
"""Nothing random happens in a block, so no generator state is kept."""


def apply_recompute(model: GPT, mode: Literal["none", "pointwise", "selective", "full"]) -> None:
    """Set how the model passes through its blocks, or through the cores of their attention."""
    if mode == "full":
        model.through = REPEATED
    elif mode == "pointwise":
        keep = functools.partial(create_selective_checkpoint_contexts, dear_operators(RING, EXCHANGE, EXPERTS))
        model.through = functools.partial(REPEATED, context_fn=keep)
    elif mode == "selective":
        for attention in [module for module in model.modules() if isinstance(module, Attention)]:
            attention.core = RepeatedCore(attention.core)


class RepeatedCore(nn.Module):
    """Attention's core, of which only the inputs are kept."""

    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.core = core

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *, documents: Documents | None = None) -> Tensor:
        result: Tensor = REPEATED(self.core, query, key, value, documents=documents)
        return result
