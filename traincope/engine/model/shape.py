"""Shapes of the configured model, and its layout, in the form that the formulas of `plan` take."""

from traincope.engine.config import Config, ExpertsConfig
from traincope.plan.layout.layout import Layout, Overlap
from traincope.plan.model.flops import Recompute
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


def planned_layout(config: Config) -> Layout:
    """Layout of the configured training. A pipeline's microbatches include those of accumulation."""
    parallel, train = config.parallel, config.train
    microbatches = parallel.microbatches * train.accumulation
    sharded = 1 if parallel.pp > 1 else config.fsdp.stage
    return Layout(
        dp=parallel.replicas,
        tp=parallel.tp,
        pp=parallel.pp,
        cp=parallel.cp,
        ep=parallel.ep,
        replicas=parallel.dp_replicate,
        zero=sharded if parallel.shards > 1 else int(config.ddp.shard_optimizer),
        sequence_parallel=parallel.sequence_parallel,
        cp_method=parallel.cp_method,
        schedule=parallel.schedule,
        virtual=parallel.virtual,
        microbatches=microbatches,
        micro_batch=train.batch // parallel.replicas // microbatches,
        overlap=Overlap.DATA,
        fused_sums=False,
    )


def planned_recompute(config: Config) -> Recompute | None:
    """Recomputation of the configured training; None for one that the formulas do not know (`pointwise`)."""
    return {each.value: each for each in Recompute}.get(config.train.recompute)
