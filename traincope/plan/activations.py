"""What forward keeps for backward, by formula: Korthikanti et al. 2022, arXiv:2205.05198, section 4 and table 2.

    s b h (34 + 5 a s / h)            bytes of a block, one rank alone
    s b h (10 + 24 / t + 5 a s / h t)   cut by tensor parallelism over t ranks
    s b h / t (34 + 5 a s / h)        sequence parallel too
    34 only                           selective recomputation: scores, softmax and its dropout again
    s b h 2                           full recomputation: a block's input alone

for 16-bit numbers and 8-bit dropout masks; here for any widths, grouped queries, gated feed-forwards,
experts, and sequences cut by context parallelism. These are modules that fuse what can be fused; a
module that keeps both a number and its cast or its square keeps more.
"""

from dataclasses import dataclass

from traincope.plan.flops import Recompute
from traincope.plan.layout import Layout
from traincope.plan.precision import DTYPES
from traincope.plan.transformer import Transformer

MASK = 1
"""Bytes of a dropout mask's element."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """What of a block is kept."""

    recompute: Recompute = Recompute.NONE
    flash: bool = False
    """Attention keeps no scores, and computes them again by itself (Dao et al. 2022, arXiv:2205.14135)."""
    dropout: bool = True
    dtype: str = "bf16"

    @property
    def number(self) -> int:
        """Bytes of one."""
        return DTYPES[self.dtype]


def block_bytes(shape: Transformer, *, layout: Layout, keeping: Keeping, routed: bool = False) -> int:
    """Of one block and one microbatch on one rank; `routed`: of a block with experts, tokens spread evenly."""
    tokens, between = _tokens(shape, layout), layout.between
    inputs = tokens * shape.hidden * keeping.number
    if keeping.recompute is Recompute.FULL:
        return inputs // between
    masks = 2 * tokens * shape.hidden * MASK if keeping.dropout else 0
    feed_forward = _experts(shape, layout, keeping) if routed else _feed_forward(shape, layout, keeping)
    # Both norms' inputs and what they make of them: the attention's and the feed-forward's inputs.
    return (4 * inputs + masks) // between + _attention(shape, layout, keeping) + feed_forward


def ends_bytes(shape: Transformer, *, layout: Layout, keeping: Keeping, stage: int) -> int:
    """What embedding and output add on their stages: section 4.3, dropout's mask; 4 s b h (1 + V / h)."""
    tokens = _tokens(shape, layout)
    first = tokens * shape.hidden * MASK // layout.between if stage == 0 and keeping.dropout else 0
    if stage < layout.pipeline.stages - 1:
        return first
    inputs = 2 * tokens * shape.hidden * keeping.number // layout.between
    return first + inputs + tokens * shape.vocabulary * DTYPES["fp32"] // layout.tp


def stage_bytes(shape: Transformer, *, layout: Layout, keeping: Keeping, stage: int) -> int:
    """Of one microbatch on a stage."""
    blocks = layout.blocks(stage, shape)
    routed = shape.num_routed(blocks)
    kept = (len(blocks) - routed) * block_bytes(shape, layout=layout, keeping=keeping)
    if routed:
        kept += routed * block_bytes(shape, layout=layout, keeping=keeping, routed=True)
    return kept + ends_bytes(shape, layout=layout, keeping=keeping, stage=stage)


def _tokens(shape: Transformer, layout: Layout) -> int:
    """Of a microbatch on one rank."""
    return layout.micro_batch * shape.sequence // layout.cp


def _attention(shape: Transformer, layout: Layout, keeping: Keeping) -> int:
    """Queries, keys, values, and the output's input; scores after softmax, their mask and what dropout leaves."""
    tokens = _tokens(shape, layout)
    kept = 2 * tokens * (shape.query_width + shape.kv_width) * keeping.number // layout.tp
    if keeping.flash or keeping.recompute is Recompute.SELECTIVE:
        return kept
    each = 2 * keeping.number + MASK if keeping.dropout else keeping.number
    return kept + tokens * shape.sequence * shape.heads * each // layout.tp


def _feed_forward(shape: Transformer, layout: Layout, keeping: Keeping) -> int:
    return _tokens(shape, layout) * _inner(shape) * shape.ffn_width * keeping.number // layout.tp


def _experts(shape: Transformer, layout: Layout, keeping: Keeping) -> int:
    """Of each expert that a token takes its input, its output, which the router's gradient needs, and the inside."""
    experts = shape.experts
    if experts is None:
        return 0
    around = 2 * experts.top_k * shape.hidden
    inside = (experts.top_k * experts.ffn + experts.shared_width) * _inner(shape)
    return _tokens(shape, layout) * (around + inside) * keeping.number // layout.tp


def _inner(shape: Transformer) -> int:
    """Tensors of inner width: the non-linearity's inputs and its output."""
    return 3 if shape.gated_mlp else 2
