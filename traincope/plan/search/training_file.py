"""A layout as a configuration of `traincope train`."""

from collections.abc import Mapping

from traincope.errors import UsageError
from traincope.plan.layout.layout import Layout, Place
from traincope.plan.model.flops import Recompute
from traincope.plan.model.transformer import Transformer

FILES = {Place.NVME: "file"}
"""Places that the engine's [offload] calls otherwise."""
Tables = Mapping[str, Mapping[str, int | float | str]]


def training_file(shape: Transformer, *, layout: Layout, recompute: Recompute, tokens: float, every: int) -> str:
    """TOML for `traincope train`, with a checkpoint after every `every` steps.

    Raises UsageError for a model or layout that the engine does not have.
    """
    _check(shape, layout)
    steps = max(1, round(tokens / (layout.batch * shape.sequence)))
    model: dict[str, int | float | str] = {
        "layers": shape.layers,
        "hidden": shape.hidden,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads or shape.heads,
        "ffn": shape.ffn_width,
        "sequence": shape.sequence,
        "vocabulary": shape.vocabulary,
    }
    tables: dict[str, dict[str, int | float | str]] = {"model": model}
    experts = shape.experts
    if experts is not None:
        tables["experts"] = {"number": experts.count, "top_k": experts.top_k, "ffn": experts.ffn}
        tables["experts"] |= {"shared": "true"} if experts.shared else {}
    tables["parallel"] = _parallel(layout)
    if fsdp := _fsdp(layout):
        tables["fsdp"] = fsdp
    if layout.updates_on_cpu:
        tables["offload"] = _offload(layout)
    if _sharded_optimizer(layout):
        tables["ddp"] = {"shard_optimizer": "true"}
    train: dict[str, int | float | str] = {"steps": steps, "batch": layout.batch, "precision": "bf16"}
    if layout.pp == 1:
        train["accumulation"] = layout.microbatches
    if recompute is not Recompute.NONE:
        train["recompute"] = recompute.value
    tables["train"] = train
    tables["optimizer"] = {"clip_norm": 1.0}
    tables["checkpoint"] = {"every": every}
    return "\n".join(_table(name, values) for name, values in tables.items())


def _check(shape: Transformer, layout: Layout) -> None:
    if not (shape.gated_mlp and shape.untied):
        raise UsageError("--emit: the engine's models have a gated feed-forward and an output matrix of their own")
    if shape.head_dim not in (None, shape.hidden // shape.heads):
        raise UsageError(f"--emit: the engine's heads are hidden / heads wide, not {shape.head_dim}")
    if shape.latent is not None or shape.windows is not None:
        raise UsageError("--emit: the engine's attention is over whole sequences, with whole queries, keys and values")
    experts = shape.experts
    if experts is not None and (experts.dense_layers or experts.pattern or experts.shared > 1):
        raise UsageError("--emit: the engine's experts are in all layers, with at most one shared expert")
    if experts is not None and experts.shared and (experts.shared_ffn or experts.ffn) != shape.ffn_width:
        raise UsageError(
            f"--emit: the engine's shared expert is as wide as the model's feed-forward, {shape.ffn_width}, not "
            f"{experts.shared_ffn or experts.ffn}"
        )
    if layout.zero == 1 and layout.pp == 1 and layout.shards > 1 and not _sharded_optimizer(layout):
        raise UsageError("--emit: the engine has ZeRO stage 1 with pp, or with dp alone; give --zero 2 or --zero 3")
    if layout.zero == 0 and layout.pp == 1 and layout.shards > 1:
        raise UsageError("--emit: give --zero 1, 2 or 3")
    if layout.zero > 1 and layout.pp > 1:
        raise UsageError(f"--emit: the engine's pipelines keep weights and gradients, unlike ZeRO stage {layout.zero}")


def _fsdp(layout: Layout) -> dict[str, int | float | str]:
    table: dict[str, int | float | str] = {"stage": 2} if layout.zero == 2 else {}
    if layout.node_ranks is not None:
        table["node_ranks"] = layout.node_ranks
    table |= {"quantize_weights": "true"} if layout.quantize_weights else {}
    return table | ({"quantize_gradients": "true"} if layout.quantize_gradients else {})


def _offload(layout: Layout) -> dict[str, int | float | str]:
    places = {"parameters": layout.parameters_place, "optimizer": layout.optimizer_place}
    return {name: FILES.get(place, place.value) for name, place in places.items() if place is not Place.DEVICE}


def _sharded_optimizer(layout: Layout) -> bool:
    """DDP whose replicas share the optimizer's state: ZeRO stage 1 without a pipeline."""
    return layout.zero == 1 and layout.dp > 1 and layout.pp == layout.tp == layout.cp == layout.ep == 1


def _parallel(layout: Layout) -> dict[str, int | float | str]:
    shards = layout.dp // layout.replicas
    sizes = {"pp": layout.pp, "dp" if _sharded_optimizer(layout) else "fsdp": shards, "cp": layout.cp}
    sizes |= {"tp": layout.tp, "ep": layout.ep, "dp_replicate": layout.replicas}
    table: dict[str, int | float | str] = {axis: size for axis, size in sizes.items() if size > 1}
    if layout.pp > 1:
        table["schedule"] = layout.order_name
        table["microbatches"] = layout.microbatches
        if layout.pipeline.chunks > 1:
            table["virtual"] = layout.pipeline.chunks
    return table


def _table(name: str, values: Mapping[str, int | float | str]) -> str:
    lines = (f"{key} = {_value(value)}" for key, value in values.items())
    return "\n".join([f"[{name}]", *lines, ""])


def _value(value: int | float | str) -> str:
    return f'"{value}"' if isinstance(value, str) and value != "true" else str(value)
