"""Model FLOPs per unit of work: a step is linear in tokens, squared document lengths and experts' rows.

A model declares three rates once, and each step its own amounts. This is equation 7 of Korthikanti et al. 2022
(arXiv:2205.05198), term by term.
"""

from dataclasses import dataclass

from traincope.plan.model.flops import TRAINING
from traincope.plan.model.transformer import Transformer


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """Work of one step, over the whole job."""

    tokens: float
    squared_lengths: float
    """Sum of the squared lengths of its documents if attention stays within them, otherwise of its sequences."""
    routed_tokens: float = 0.0
    """Tokens that experts took. A token counts once for each of its experts in each layer, unless dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """FLOPs of forward and backward per unit of each amount."""

    token: float
    squared_length: float
    """Causal attention is not halved."""
    routed_token: float = 0.0

    def flops(self, amounts: Amounts, *, causal_half: bool = False) -> float:
        attention = self.squared_length * amounts.squared_lengths
        weights = self.token * amounts.tokens + self.routed_token * amounts.routed_tokens
        return weights + (attention / 2 if causal_half else attention)


def model_rates(shape: Transformer) -> Rates:
    """Rates of a model.

    Each weight is multiplied with a token. Queries with keys and probabilities with values take 4 s^2 h per block. With
    attention in windows the rates are those of whole sequences.
    """
    reaches = shape.layers if shape.windows is None else shape.squared_reaches / shape.sequence**2
    always = shape.active_block_weights - expert_passes(shape) * shape.expert_weights
    return Rates(
        token=TRAINING * 2 * (always + shape.embedding_weights),
        squared_length=TRAINING * 2 * reaches * (shape.query_width + shape.mixed_width),
        routed_token=TRAINING * 2 * shape.expert_weights,
    )


def whole_sequences(shape: Transformer, *, tokens: float) -> Amounts:
    """Amounts of `tokens` tokens in whole sequences, without documents and with no token dropped by an expert."""
    return Amounts(tokens=tokens, squared_lengths=tokens * shape.sequence, routed_tokens=tokens * expert_passes(shape))


def expert_passes(shape: Transformer) -> int:
    """Experts that a token passes in all blocks together."""
    return 0 if shape.experts is None else shape.expert_layers * shape.experts.top_k
