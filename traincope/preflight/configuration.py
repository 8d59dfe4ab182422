"""Facts of a configuration of `traincope train` that the judging needs."""

from traincope.engine.config import Config
from traincope.engine.model.shape import planned_layout, planned_recompute, transformer
from traincope.plan.layout.activations import ActivationPolicy
from traincope.plan.model.flops import Recompute
from traincope.plan.model.precision import DTYPES, Precision
from traincope.preflight.judging.costs import ConfiguredPipeline
from traincope.preflight.judging.judgement import Configured
from traincope.preflight.judging.prediction import ConfiguredModel


def configured(config: Config) -> Configured:
    """Model, layout and pipeline of the configuration."""
    parallel, train = config.parallel, config.train
    dtype = "fp32" if train.precision == "fp32" else "bf16"
    sequences = train.batch // parallel.replicas // train.accumulation
    pipeline = ConfiguredPipeline(
        schedule=parallel.order_name,
        shape=parallel.pipeline,
        layers=config.model.layers,
        sequences=sequences,
        batch=train.batch,
        rounds=train.accumulation,
        ddp=parallel.dp > 1,
        recompute_layers=train.recompute_layers,
    )
    policy = ActivationPolicy(
        recompute=planned_recompute(config) or Recompute.NONE,
        flash=True,
        dropout=config.model.dropout > 0,
        dtype=dtype,
    )
    model = ConfiguredModel(
        shape=transformer(config),
        layout=planned_layout(config),
        precision=Precision(weights=dtype, gradients="fp32", activations=dtype),
        policy=policy,
    )
    message = sequences // parallel.microbatches * config.stream_tokens * config.model.hidden * DTYPES[dtype]
    return Configured(model=model, pipeline=pipeline if parallel.pp > 1 else None, message_bytes=message)
