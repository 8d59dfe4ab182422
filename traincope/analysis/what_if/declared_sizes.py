"""Sizes that a run of `traincope train` has in its settings, and changes that they do not allow."""

from collections.abc import Iterator, Mapping
from math import prod

from traincope.errors import UsageError
from traincope.plan.pipeline.orders import Shape
from traincope.plan.pipeline.stage_layers import is_possible, stage_layers

REPLICAS = ("dp_replicate", "fsdp", "dp")
"""Axes whose ranks divide the sequences of a step."""
DIVIDED_BY_TP = ("heads", "kv_heads", "ffn")
"""Sizes of the model that tp divides."""


def check_pipeline(settings: Mapping[str, object], *, schedule: str, shape: Shape) -> Iterator[str]:
    """Yield what is assumed where the run does not declare its sizes. Raises UsageError for an impossible pipeline."""
    layers = _size(settings, "model", "layers")
    if layers is None:
        yield f"the layers are assumed to fill {shape.stages} stages: the run does not declare their number"
    elif not is_possible(stage_layers(layers, schedule=schedule, shape=shape)):
        raise UsageError(
            f"the {layers} layers of this run do not fill {shape.stages} stages; choose fewer pipeline ranks or stages "
            "per rank"
        )
    sequences = _sequences(settings)
    if sequences is None:
        yield f"the batch is assumed to divide into {shape.microbatches} microbatches: the run does not declare it"
    elif sequences % shape.microbatches:
        raise UsageError(
            f"the {sequences} sequences of a replica do not divide into {shape.microbatches} microbatches; choose a "
            f"divisor of {sequences}"
        )


def check_tensor(settings: Mapping[str, object], *, tp: int) -> Iterator[str]:
    """Yield what is assumed where the run does not declare its sizes. Raises UsageError for an impossible tp."""
    sizes = {name: _size(settings, "model", name) for name in DIVIDED_BY_TP}
    for name, size in sizes.items():
        if size is not None and size % tp:
            raise UsageError(
                f"model.{name} = {size} of this run does not divide over tp={tp}; choose a divisor of {size}"
            )
    if None in sizes.values():
        yield f"heads and widths are assumed to divide over tp={tp}: the run does not declare them"


def _sequences(settings: Mapping[str, object]) -> int | None:
    """Sequences of one replica in one round of the schedule; None if the settings do not have all of it."""
    batch, rounds = (_size(settings, "train", name) for name in ("batch", "accumulation"))
    replicas = [_size(settings, "parallel", name) for name in REPLICAS]
    if batch is None or rounds is None or None in replicas:
        return None
    return batch // rounds // prod(size for size in replicas if size is not None)


def _size(settings: Mapping[str, object], table: str, name: str) -> int | None:
    values = settings.get(table)
    value = values.get(name) if isinstance(values, Mapping) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
