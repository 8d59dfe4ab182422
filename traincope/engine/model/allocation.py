"""The configured training as the sizes from which `plan.allocator` computes its peak of memory on a CPU."""

from collections.abc import Iterator

from traincope.engine.config import Config
from traincope.engine.model.shape import planned_layout, transformer
from traincope.errors import ConfigError
from traincope.plan.allocator.modules import Model
from traincope.plan.model.flops import Recompute


def allocated_model(config: Config) -> Model:
    """Sizes of a rank. Raises ConfigError, with the key, for a setting whose memory has no formula."""
    for key, value, possible in _settings(config):
        if value != possible:
            raise ConfigError(f"{key} = {value!r} has no formula for the peak of memory; it has one for {possible!r}")
    if config.train.recompute == "pointwise":
        raise ConfigError(
            "train.recompute = 'pointwise' has no formula for the peak of memory; none, selective and full have one"
        )
    return Model(
        shape=transformer(config),
        layout=planned_layout(config),
        recompute=Recompute(config.train.recompute),
        dropout=config.model.dropout > 0,
        capacity=None if config.experts is None else config.experts.capacity(config.model.sequence),
    )


def _settings(config: Config) -> Iterator[tuple[str, object, object]]:
    """Yield (key, value, the value with a formula)."""
    yield "train.precision", config.train.precision, "fp32"
    yield "train.recompute_layers", config.train.recompute_layers, None
    yield "data.end_of_document", config.data.end_of_document, None
    yield "ddp.compression", config.ddp.compression, "none"
    yield "fsdp.unit_blocks", config.fsdp.unit_blocks, 1
    yield "fsdp.reduce", config.fsdp.reduce, "fp32"
    for name in ("prefetch", "node_ranks"):
        yield f"fsdp.{name}", getattr(config.fsdp, name), None
    for name in ("quantize_weights", "quantize_gradients"):
        yield f"fsdp.{name}", getattr(config.fsdp, name), False
    yield "offload.parameters", config.offload.parameters, "none"
    yield "offload.optimizer", config.offload.optimizer, "none"
    if config.parallel.pp > 1:
        yield "train.accumulation", config.train.accumulation, 1
    if config.experts is not None:
        yield "parallel.tp", config.parallel.tp, 1
