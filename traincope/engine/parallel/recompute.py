"""Activation recomputation: backward computes some activations again instead of keeping them.

`full` keeps only a block's input (Chen et al. 2016, arXiv:1604.06174).

`selective` keeps everything except the values between queries, keys and values and the output's product (Korthikanti et
al. 2022, arXiv:2205.05198, section 5), and computes attention again. Most of its saving are scores, which fused
attention never keeps. Here it saves a block's attention before its heads are joined, and one number per head and token.

`pointwise` keeps results that are costly to compute and small to keep: outputs of matrix products, attention and
communication. Norms, rotations and SwiGLU's pointwise part are computed again.
"""

import functools
from typing import Literal

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from traincope.engine.model.attention import Attention
from traincope.engine.model.documents import Documents
from traincope.engine.model.model import GPT
from traincope.engine.parallel.dispatch import OPERATOR as EXPERTS
from traincope.engine.parallel.ring_attention import OPERATOR as RING
from traincope.engine.parallel.ulysses import OPERATOR as EXCHANGE
from traincope.engine.ranks.torch_private import costly_operators

RUN_WITH_RECOMPUTE = functools.partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
"""Runs a module and keeps only its inputs. A module that draws random numbers must set `preserve_rng_state`."""


def apply_recompute(model: GPT, mode: Literal["none", "pointwise", "selective", "full"]) -> None:
    """Set how the model runs its blocks, or the cores of their attention."""
    run_block = functools.partial(RUN_WITH_RECOMPUTE, preserve_rng_state=model.config.dropout > 0)
    if mode == "full":
        model.run_block = run_block
    elif mode == "pointwise":
        keep = functools.partial(create_selective_checkpoint_contexts, costly_operators(RING, EXCHANGE, EXPERTS))
        model.run_block = functools.partial(run_block, context_fn=keep)
    elif mode == "selective":
        for attention in [module for module in model.modules() if isinstance(module, Attention)]:
            attention.core = RecomputedCore(attention.core)


class RecomputedCore(nn.Module):
    """Attention's core that keeps only its inputs."""

    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.core = core

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *, documents: Documents | None = None) -> Tensor:
        result: Tensor = RUN_WITH_RECOMPUTE(self.core, query, key, value, documents=documents)
        return result
