"""Model FLOPs of a training step are linear in what it went over: tokens, squared document lengths, experts' rows.

So a model tells three numbers once, and every step its own amounts: equation 7 of Korthikanti et al. 2022
(arXiv:2205.05198), term by term.
"""

from dataclasses import dataclass

from traincope.plan.flops import TRAINING
from traincope.plan.transformer import Transformer


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """Of one step, over the whole job."""

    tokens: float
    squared_lengths: float
    """Sum of the squared lengths of its documents, where attention ends with each; else of its sequences."""
    routed_tokens: float = 0.0
    """Tokens that experts took: a token counts once for each of its experts in each layer, unless dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """FLOPs of forward and backward, for each of those."""

    token: float
    squared_length: float
    """Causal attention not halved."""
    routed_token: float = 0.0

    def flops(self, amounts: Amounts, *, causal_half: bool = False) -> float:
        attention = self.squared_length * amounts.squared_lengths
        weights = self.token * amounts.tokens + self.routed_token * amounts.routed_tokens
        return weights + (attention / 2 if causal_half else attention)


def model_rates(shape: Transformer) -> Rates:
    """Every weight is multiplied with a token; queries with keys and probabilities with values, 4 s^2 h a block."""
    always = shape.active_block_weights - passes(shape) * shape.expert_weights
    return Rates(
        token=TRAINING * 2 * (always + shape.embedding_weights),
        squared_length=TRAINING * 4 * shape.layers * shape.query_width,
        routed_token=TRAINING * 2 * shape.expert_weights,
    )


def passes(shape: Transformer) -> int:
    """Experts that a token passes on its way through all blocks."""
    return 0 if shape.experts is None else shape.expert_layers * shape.experts.top_k
