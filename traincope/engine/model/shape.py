"""Shapes of the configured model, and its layout, in the form that the formulas of `plan` take."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypedDict

from traincope.engine.config import Config, ExpertsConfig
from traincope.plan.layout.layout import Layout, Overlap, Place
from traincope.plan.model.flops import Recompute
from traincope.plan.model.rates import Amounts, whole_sequences
from traincope.plan.model.transformer import Experts, Transformer

PLACES: Mapping[str, Place] = MappingProxyType({"none": Place.DEVICE, "cpu": Place.CPU, "file": Place.NVME})
"""Place by its name in `OffloadConfig`."""


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
    zero = sharded if parallel.shards > 1 else int(config.ddp.shard_optimizer)
    return Layout(
        dp=parallel.replicas,
        tp=parallel.tp,
        pp=parallel.pp,
        cp=parallel.cp,
        ep=parallel.ep,
        replicas=parallel.dp_replicate,
        zero=zero,
        **_off_device(config, zero=zero),
        sequence_parallel=parallel.sequence_parallel,
        cp_method=parallel.cp_method,
        schedule=parallel.schedule,
        virtual=parallel.virtual,
        microbatches=microbatches,
        micro_batch=train.batch // parallel.replicas // microbatches,
        overlap=Overlap.DATA,
        fused_sums=False,
    )


class OffDevice(TypedDict, total=False):
    """Settings of a layout for ZeRO++ and offload."""

    node_ranks: int | None
    quantize_weights: bool
    quantize_gradients: bool
    optimizer_place: Place
    parameters_place: Place


def _off_device(config: Config, *, zero: int) -> OffDevice:
    """ZeRO++ and offload. A pipeline keeps gathered weights and gradients on the device, whatever its shards do."""
    fsdp, parameters, optimizer = config.fsdp, PLACES[config.offload.parameters], PLACES[config.offload.optimizer]
    if zero < 3:
        if optimizer is Place.DEVICE and parameters is not Place.DEVICE:
            optimizer = Place.CPU
        parameters = Place.DEVICE
    return OffDevice(
        node_ranks=fsdp.node_ranks if zero == 3 and config.parallel.ep == 1 else None,
        quantize_weights=fsdp.quantize_weights,
        quantize_gradients=fsdp.quantize_gradients,
        optimizer_place=optimizer,
        parameters_place=parameters,
    )


def planned_recompute(config: Config) -> Recompute | None:
    """Recomputation of the configured training; None for one that the formulas do not know (`pointwise`)."""
    return {each.value: each for each in Recompute}.get(config.train.recompute)
