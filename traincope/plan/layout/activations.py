"""Activations that forward keeps for backward, by formula.

Korthikanti et al. 2022, arXiv:2205.05198, section 4 and table 2:

    s b h (34 + 5 a s / h)             bytes of a block on one rank
    s b h (10 + 24 / t + 5 a s / h t)  split by tensor parallelism over t ranks
    s b h / t (34 + 5 a s / h)         with sequence parallelism too
    34 only                            selective recomputation: scores, softmax and its dropout again
    s b h 2                            full recomputation: a block's input only

The paper's formulas hold for 16-bit numbers and 8-bit dropout masks. Here they hold for any widths, grouped queries,
gated feed-forwards, experts, and sequences split by context parallelism. Modules are assumed to fuse what can be fused;
a module that keeps both a number and its cast or its square keeps more.
"""

from dataclasses import dataclass, replace

from traincope.plan.layout.layout import Layout
from traincope.plan.model.flops import Recompute
from traincope.plan.model.precision import DTYPES
from traincope.plan.model.transformer import Transformer

MASK = 1
"""Bytes of one element of a dropout mask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationPolicy:
    """Activations of a block that are kept."""

    recompute: Recompute = Recompute.NONE
    flash: bool = False
    """Attention keeps no scores and computes them again (Dao et al. 2022, arXiv:2205.14135)."""
    triton: bool = False
    """Flash attention is its first kernel in Triton (2022), which is slower than the present ones."""
    ordered: bool = False
    """Flash attention sums gradients in a fixed order, so that runs repeat to the bit: rates of FlashAttention 2.

    With NVTE_ALLOW_NONDETERMINISTIC_ALGO=0, Transformer Engine takes it on an A100, and prefers cuDNN on an H100
    (get_attention_backend)."""
    score_biases: bool = False
    """Attention that is not fused adds biases to its scores (ALiBi; Press et al. 2021, arXiv:2108.12409)."""
    copies_output: bool = False
    """The output of flash attention over several sequences is copied into another order, and both stay: tokens come
    first in Megatron-LM, sequences in FlashAttention 2."""
    two_pass_norms: bool = False
    """The backward of a norm reads its input and gradient once for the gradient of the input, and again for those of
    the weights (Megatron-LM's layer_norm_cuda_kernel.cu of 2021, PyTorch's layer_norm_kernel.cu)."""
    early_stop: bool = True
    """Full recomputation stops at the last tensor that backward needs, before a block's last product, as PyTorch's
    checkpoints without reentrancy do. Megatron-LM's repeat the whole block."""
    dropout: bool = True
    dtype: str = "bf16"

    @property
    def element_bytes(self) -> int:
        """Bytes of one number."""
        return DTYPES[self.dtype]

    def with_recompute(self, recompute: Recompute) -> "ActivationPolicy":
        return replace(self, recompute=recompute)


def block_bytes(shape: Transformer, *, layout: Layout, policy: ActivationPolicy, routed: bool = False) -> int:
    """Bytes of one block and one microbatch on one rank.

    `routed`: a block with experts, with tokens spread evenly.
    """
    tokens, stream_ranks = _tokens(shape, layout), layout.stream_ranks
    inputs = tokens * shape.hidden * policy.element_bytes
    if policy.recompute is Recompute.FULL:
        return inputs // stream_ranks
    masks = 2 * tokens * shape.hidden * MASK if policy.dropout else 0
    feed_forward = _experts(shape, layout, policy) if routed else _feed_forward(shape, layout, policy)
    # Inputs and outputs of both norms. The outputs are the inputs of attention and feed-forward.
    return (4 * inputs + masks) // stream_ranks + _attention(shape, layout, policy) + feed_forward


def embedding_output_bytes(shape: Transformer, *, layout: Layout, policy: ActivationPolicy, stage: int) -> int:
    """Bytes that embedding and output add on their stages.

    Section 4.3 of the paper: the embedding's dropout mask, and 4 s b h (1 + V / h), where the logits are in fp32.
    """
    tokens = _tokens(shape, layout)
    first = tokens * shape.hidden * MASK // layout.stream_ranks if stage == 0 and policy.dropout else 0
    if stage < layout.pipeline.stages - 1:
        return first
    inputs = 2 * tokens * shape.hidden * policy.element_bytes // layout.stream_ranks
    return first + inputs + logits_bytes(shape, layout=layout, policy=policy)


def logits_bytes(shape: Transformer, *, layout: Layout, policy: ActivationPolicy) -> int:
    """Bytes of a microbatch's logits on the rank with the last stage, while the loss is computed.

    Megatron-LM's loss overwrites its fp32 logits with their gradient; the 16-bit ones that they are cast from stay
    until then (megatron/core/tensor_parallel/cross_entropy.py). Trainings with ZeRO 2 and 3 use torch's cross entropy:
    its backward holds the logarithm of the softmax, its gradient, and the gradient of the logits, all in fp32.
    """
    if layout.zero >= 2:
        each = 3 * DTYPES["fp32"]
    else:
        each = DTYPES["fp32"] + (policy.element_bytes if policy.dtype != "fp32" else 0)
    return _tokens(shape, layout) * shape.vocabulary * each // layout.tp


def scores_bytes(shape: Transformer, *, layout: Layout, policy: ActivationPolicy) -> int:
    """Bytes of a block's scores before softmax, and of the mask that all blocks share.

    Attention that is not fused writes the scores into a buffer that it uses again in each block.
    """
    if policy.flash:
        return 0
    keys = _tokens(shape, layout) * shape.sequence
    return keys * shape.heads * policy.element_bytes // layout.tp + keys * MASK


def stage_bytes(shape: Transformer, *, layout: Layout, policy: ActivationPolicy, stage: int) -> int:
    """Bytes of one microbatch on a stage."""
    blocks = layout.blocks(shape)[stage]
    routed = shape.num_routed(blocks)
    kept = (len(blocks) - routed) * block_bytes(shape, layout=layout, policy=policy)
    if routed:
        kept += routed * block_bytes(shape, layout=layout, policy=policy, routed=True)
    return kept + embedding_output_bytes(shape, layout=layout, policy=policy, stage=stage)


def _tokens(shape: Transformer, layout: Layout) -> int:
    """Tokens of a microbatch on one rank."""
    return layout.micro_batch * shape.sequence // layout.cp


def _attention(shape: Transformer, layout: Layout, policy: ActivationPolicy) -> int:
    """Bytes of queries, keys, values and the output's input, and of scores.

    Scores count after softmax, with their mask and the result of dropout. A latent attention also keeps the inputs and
    outputs of the norms of its narrow vectors.
    """
    tokens = _tokens(shape, layout)
    outputs = 2 if policy.copies_output and layout.micro_batch > 1 else 1
    widths = shape.query_width + shape.key_width + shape.value_width + outputs * shape.mixed_width
    kept = tokens * widths * policy.element_bytes // layout.tp
    if shape.latent is not None:
        kept += 2 * tokens * shape.latent.width * policy.element_bytes // layout.stream_ranks
    if policy.flash or policy.recompute is Recompute.SELECTIVE:
        return kept
    each = 2 * policy.element_bytes + MASK if policy.dropout else policy.element_bytes
    return kept + tokens * shape.sequence * shape.heads * each // layout.tp


def _feed_forward(shape: Transformer, layout: Layout, policy: ActivationPolicy) -> int:
    return _tokens(shape, layout) * _inner(shape) * shape.ffn_width * policy.element_bytes // layout.tp


def _experts(shape: Transformer, layout: Layout, policy: ActivationPolicy) -> int:
    """Bytes of the input, inner values and output of each expert that a token takes.

    The router's gradient needs the outputs.
    """
    experts = shape.experts
    if experts is None:
        return 0
    ends = 2 * experts.top_k * shape.hidden
    inner = (experts.top_k * experts.ffn + experts.shared_width) * _inner(shape)
    return _tokens(shape, layout) * (ends + inner) * policy.element_bytes // layout.tp


def _inner(shape: Transformer) -> int:
    """Number of tensors of inner width: the non-linearity's inputs and its output."""
    return 3 if shape.gated_mlp else 2
