"""FLOPs of training a transformer, by formula. A multiply-add is two FLOPs.

Korthikanti et al. 2022 (arXiv:2205.05198), equations 7 and 8, extended to any feed-forward width, grouped queries,
gated feed-forwards, experts (a token takes top_k) and packed documents; and the two rules of thumb per token, 6 N and 6
N + 12 L H Q T. With full recomputation equation 7 is equation 3 of Narayanan et al. 2021 (arXiv:2104.04473): 96 B s L
h^2 (1 + s / 6h + V / 16 L h).
"""

from dataclasses import dataclass
from enum import StrEnum

from traincope.errors import UsageError
from traincope.plan.model.transformer import Transformer

TRAINING = 3
"""Forward and backward relative to forward. Backward takes twice the forward: one product for the input's gradient and
one for the weight's."""


class Recompute(StrEnum):
    NONE = "none"
    SELECTIVE = "selective"
    """Scores, softmax and mixing of each block."""
    FULL = "full"
    """Whole forward of each block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFlops:
    """FLOPs of one optimizer step, over the whole job."""

    model: int
    """FLOPs that the mathematics needs."""
    hardware: int
    """Model FLOPs and recomputation."""


def blocks_forward(shape: Transformer, *, batch: int) -> int:
    """FLOPs of the weights of all blocks on `batch` sequences. Only experts that a token takes count."""
    return 2 * batch * shape.sequence * shape.active_block_weights


def attention_forward(
    shape: Transformer, *, batch: int, causal_half: bool = False, squared_lengths: int | None = None
) -> int:
    """FLOPs of queries with keys and probabilities with values.

    That is 4 s^2 h per sequence and block, half of it below the diagonal, and in windows the share that they leave of
    that half. `squared_lengths`: sum of the squared lengths of all documents of a step, if attention stays within
    documents; None: of `batch` whole sequences. Raises UsageError for an impossible sum, and for windows within
    documents.
    """
    squares = batch * shape.squared_reaches
    if squared_lengths is not None:
        _check_documents(shape, squared_lengths, batch=batch)
        squares = shape.layers * squared_lengths
    whole = 2 * squares * (shape.query_width + shape.mixed_width)
    return whole // 2 if causal_half else whole


def _check_documents(shape: Transformer, squared_lengths: int, *, batch: int) -> None:
    if shape.windows is not None:
        raise UsageError(
            "attention in windows within documents needs the length of each document, not their squares' sum; "
            "leave the squared lengths out"
        )
    whole_sequences = batch * shape.sequence**2
    if not batch * shape.sequence <= squared_lengths <= whole_sequences:
        raise UsageError(
            f"the squared lengths of documents in {batch} sequences of {shape.sequence} tokens sum to between "
            f"{batch * shape.sequence} and {whole_sequences}, not to {squared_lengths}"
        )


def logits_forward(shape: Transformer, *, batch: int) -> int:
    return 2 * batch * shape.sequence * shape.embedding_weights


def step_flops(
    shape: Transformer,
    *,
    batch: int,
    recompute: Recompute = Recompute.NONE,
    causal_half: bool = False,
    squared_lengths: int | None = None,
) -> StepFlops:
    """FLOPs of a step on `batch` sequences.

    This is Korthikanti's equation 7 if nothing is halved and ffn = 4 hidden. Selective recomputation is equation 8 as
    printed: it counts the attention's products twice, also in backward.
    """
    blocks = blocks_forward(shape, batch=batch)
    attention = attention_forward(shape, batch=batch, causal_half=causal_half, squared_lengths=squared_lengths)
    model = TRAINING * (blocks + attention + logits_forward(shape, batch=batch))
    return StepFlops(model=model, hardware=model + _recomputed(recompute, blocks=blocks, attention=attention))


def executed_flops(shape: Transformer, *, batch: int, recompute: Recompute, causal_half: bool = False) -> int:
    """FLOPs that devices execute in a step: the model's, and one forward of everything that runs again.

    Selective recomputation repeats one forward of attention, a third of what equation 8 adds.
    """
    blocks = blocks_forward(shape, batch=batch)
    attention = attention_forward(shape, batch=batch, causal_half=causal_half)
    again = {Recompute.NONE: 0, Recompute.SELECTIVE: attention, Recompute.FULL: blocks + attention}
    return step_flops(shape, batch=batch, causal_half=causal_half).model + again[recompute]


def rule_flops(
    shape: Transformer, *, batch: int, recompute: Recompute = Recompute.NONE, attention: bool = True
) -> StepFlops:
    """FLOPs of a step by the rule of thumb.

    Per token 6 N + 12 L H Q T, with attention not halved; 6 N without attention; 8 N if everything is recomputed.
    Chowdhery et al. 2022, PaLM, arXiv:2204.02311, appendix B.
    """
    tokens = batch * shape.sequence
    scores = attention_forward(shape, batch=batch) if attention else 0
    model = 6 * shape.active_parameters * tokens + TRAINING * scores
    weights = 2 * tokens * shape.active_parameters
    return StepFlops(model=model, hardware=model + _recomputed(recompute, blocks=weights, attention=scores))


def _recomputed(recompute: Recompute, *, blocks: int, attention: int) -> int:
    """FLOPs of recomputation."""
    match recompute:
        case Recompute.NONE:
            return 0
        case Recompute.SELECTIVE:
            return TRAINING * attention
        case Recompute.FULL:
            return blocks + attention


def six_n_d(*, parameters: float, tokens: float, recompute_all: bool = False) -> float:
    """FLOPs of a training, 6 N D, without attention: Kaplan et al. 2020, arXiv:2001.08361, section 2.1.

    If each forward runs twice 8 N D: Narayanan et al. 2021, arXiv:2104.04473, equation 4.
    """
    return (8 if recompute_all else 6) * parameters * tokens


def utilization_ratio(flops: float, *, devices: int, peak_flops: float, seconds: float) -> float:
    """FLOPs of a step over the FLOPs that `devices` of `peak_flops` FLOP/s can do in `seconds`."""
    return flops / (devices * peak_flops * seconds)
