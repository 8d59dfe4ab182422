"""The configured model as the formulas of `plan` know it."""

from traincope.engine.config import Config, ExpertsConfig
from traincope.plan.rates import Amounts, passes
from traincope.plan.transformer import Experts, Transformer


def transformer(config: Config) -> Transformer:
    """Its shapes; the output has a matrix of its own."""
    model = config.model
    return Transformer(
        layers=model.layers,
        hidden=model.hidden,
        heads=model.heads,
        kv_heads=model.kv_heads,
        ffn=model.ffn,
        gated_mlp=True,
        vocabulary=model.vocabulary,
        untied=True,
        sequence=model.sequence,
        experts=None if config.experts is None else _experts(config.experts, shared_ffn=model.ffn),
    )


def _experts(config: ExpertsConfig, *, shared_ffn: int) -> Experts:
    return Experts(
        count=config.number, top_k=config.top_k, ffn=config.ffn, shared=int(config.shared), shared_ffn=shared_ffn
    )


def amounts(config: Config) -> Amounts:
    """What a step goes over at most: whole sequences, no documents within; no token dropped by an expert."""
    tokens = config.tokens_per_step
    return Amounts(
        tokens=tokens,
        squared_lengths=tokens * config.model.sequence,
        routed_tokens=tokens * passes(transformer(config)),
    )
