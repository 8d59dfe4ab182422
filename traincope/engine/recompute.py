"""Activation recomputation: what a block keeps for backward, and what backward computes again.

`full` keeps a block's input only (Chen et al. 2016, arXiv:1604.06174). `selective` keeps beside it what is dear
to make and small to keep: the outputs of matrix products, attention and communication; norms, rotations and
SwiGLU's pointwise part are computed again. With flash attention there is no score matrix to drop, so this is the
reverse of Korthikanti et al. 2022 (arXiv:2205.05198), whose selective recomputation repeats attention.
"""

import functools
from typing import Literal

from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from traincope.engine.expert_parallel import OPERATOR as EXPERTS
from traincope.engine.model import GPT
from traincope.engine.ring_attention import OPERATOR as RING
from traincope.engine.torch_private import dear_operators
from traincope.engine.ulysses import OPERATOR as EXCHANGE


def apply_recompute(model: GPT, mode: Literal["none", "selective", "full"]) -> None:
    """Set how the model passes through its blocks. Nothing random happens in one, so no generator state is kept."""
    if mode == "none":
        return
    repeated = functools.partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    if mode == "selective":
        keep = functools.partial(create_selective_checkpoint_contexts, dear_operators(RING, EXCHANGE, EXPERTS))
        repeated = functools.partial(repeated, context_fn=keep)
    model.through = repeated
