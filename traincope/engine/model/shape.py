"""Shapes of the configured model, in the form that the formulas of `plan` take."""

from traincope.engine.config import Config, ExpertsConfig
from traincope.plan.model.rates import Amounts, whole_sequences
from traincope.plan.model.transformer import Experts, Transformer


def transformer(config: Config) -> Transformer:
    """Shapes of the configured model. The output has a matrix of its own."""
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


def max_amounts(config: Config) -> Amounts:
    """Largest amounts of a step: whole sequences without documents, and no token dropped by an expert."""
    return whole_sequences(transformer(config), tokens=config.tokens_per_step)
