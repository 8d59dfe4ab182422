"""FLOPs of training a dense transformer, by formula: a multiply and its add are two.

Korthikanti et al. 2022 (arXiv:2205.05198), equations 7 and 8, for any feed-forward width, grouped
queries and gated feed-forwards; and the two rules of thumb per token, 6 N and 6 N + 12 L H Q T.
"""

from dataclasses import dataclass
from enum import StrEnum

from traincope.errors import UsageError

TRAINING = 3
"""Backward takes twice the forward: one product for the input's gradient, one for the weight's."""


class Recompute(StrEnum):
    NONE = "none"
    SELECTIVE = "selective"
    """Scores, softmax and mixing of every block."""
    FULL = "full"
    """Every block's whole forward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """Shapes of the model; raises UsageError for sizes below 1 and heads that do not divide."""

    layers: int
    hidden: int
    heads: int
    vocabulary: int
    sequence: int
    kv_heads: int | None = None
    """None: as many as heads."""
    ffn: int | None = None
    """Inner width of the feed-forward; None: 4 x hidden."""
    gated_mlp: bool = False
    """SwiGLU and its like multiply three matrices, not two."""

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "vocabulary", "sequence", "kv_heads", "ffn"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} = {value} must be at least 1")
        kv_heads = self.kv_heads or self.heads
        if self.hidden % self.heads or self.heads % kv_heads:
            raise UsageError(
                f"hidden = {self.hidden}, heads = {self.heads} and kv_heads = {kv_heads} must each be a multiple "
                "of the next; change one of them"
            )

    @property
    def block_weights(self) -> int:
        """Elements of one block's matrices."""
        kv_width = self.hidden // self.heads * (self.kv_heads or self.heads)
        attention = 2 * self.hidden * self.hidden + 2 * self.hidden * kv_width
        return attention + (3 if self.gated_mlp else 2) * self.hidden * (self.ffn or 4 * self.hidden)

    @property
    def parameters(self) -> int:
        """Elements of all matrices, the embedding counted once; norms, biases and positions are left out."""
        return self.layers * self.block_weights + self.hidden * self.vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFlops:
    """FLOPs of one optimizer step, over the whole job."""

    model: int
    """What the mathematics needs."""
    hardware: int
    """And what recomputation adds."""


def blocks_forward(shape: Transformer, *, batch: int) -> int:
    """The weights of all blocks, on `batch` sequences."""
    return 2 * batch * shape.sequence * shape.layers * shape.block_weights


def attention_forward(shape: Transformer, *, batch: int, causal_half: bool = False) -> int:
    """Queries with keys and probabilities with values: 4 s^2 h a sequence and block, half of it below the diagonal."""
    whole = 4 * batch * shape.layers * shape.sequence * shape.sequence * shape.hidden
    return whole // 2 if causal_half else whole


def logits_forward(shape: Transformer, *, batch: int) -> int:
    return 2 * batch * shape.sequence * shape.hidden * shape.vocabulary


def step_flops(
    shape: Transformer, *, batch: int, recompute: Recompute = Recompute.NONE, causal_half: bool = False
) -> StepFlops:
    """Of a step on `batch` sequences; Korthikanti's equation 7 where nothing is halved and ffn = 4 hidden.

    Selective recomputation is equation 8 as it is printed: it counts the attention's products twice,
    their backward included.
    """
    blocks = blocks_forward(shape, batch=batch)
    attention = attention_forward(shape, batch=batch, causal_half=causal_half)
    model = TRAINING * (blocks + attention + logits_forward(shape, batch=batch))
    again = {Recompute.NONE: 0, Recompute.SELECTIVE: TRAINING * attention, Recompute.FULL: blocks + attention}
    return StepFlops(model=model, hardware=model + again[recompute])


def per_token(shape: Transformer) -> int:
    """6 N + 12 L H Q T, attention not halved: Chowdhery et al. 2022, PaLM, arXiv:2204.02311, appendix B."""
    return 6 * shape.parameters + 12 * shape.layers * shape.hidden * shape.sequence


def six_n_d(*, parameters: float, tokens: float) -> float:
    """6 N D, without attention: Kaplan et al. 2020, arXiv:2001.08361, section 2.1."""
    return 6 * parameters * tokens


def utilization_ratio(flops: float, *, devices: int, peak_flops: float, seconds: float) -> float:
    """FLOPs of a step over what `devices` of `peak_flops` FLOP/s could do in `seconds`."""
    return flops / (devices * peak_flops * seconds)
