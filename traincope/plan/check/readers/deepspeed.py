"""DeepSpeed's JSON: deepspeed.ai/docs/config-json."""

import re
from collections.abc import Iterator, Mapping
from typing import TypedDict

from traincope.plan.check.readers.values import AUTO, Values
from traincope.plan.check.training_plan import TrainingPlan
from traincope.plan.layout.layout import RING, ULYSSES, Layout, Overlap, Place
from traincope.plan.model.transformer import Transformer

BATCH, CLIPPING = (
    ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size"),
    "gradient_clipping",
)
COMMENT = re.compile(r'("(?:[^"\\]|\\.)*")|#[^\n]*|//[^\n]*|/\*.*?\*/|,(?=\s*[}\]])', re.DOTALL)
"""A string, which stays; or a comment or a last comma, which DeepSpeed's hjson allows."""
NOT_A_BREAK = re.compile(r"[^\n]")
KEYS = {"train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization", "gradient_accumulation_steps"}


def plain_json(text: str) -> str:
    """Blank what hjson allows and JSON does not: comments, and commas before an end. Each place stays where it was."""
    without_comments = COMMENT.sub(_blanked, text)
    return COMMENT.sub(_blanked, without_comments)


def _blanked(match: re.Match[str]) -> str:
    return match[1] or NOT_A_BREAK.sub(" ", match[0])


ADAM = frozenset({"adam", "adamw", "fusedadam", "cpuadam", AUTO})
"""Types of optimizers whose states the formulas count: a master copy and two moments of every weight."""
OLD_OFFLOAD = {"offload_optimizer": "cpu_offload", "offload_param": "cpu_offload_params"}
"""Table of an offload -> its older flag, for the CPU."""
HARMLESS = frozenset(
    {
        *("scheduler", "communication_data_type", "prescale_gradients", "gradient_predivide_factor"),
        *("sparse_gradients", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "aio"),
        *("steps_per_print", "dump_state", "seed"),
        *("wall_clock_breakdown", "flops_profiler", "activation_checkpointing", "tensorboard", "wandb", "csv_monitor"),
        *("comet", "comms_logger", "autotuning", "data_types", "checkpoint", "load_universal_checkpoint", "compile"),
        *("use_data_before_expert_parallelism", "seq_parallel_communication_data_type", "memory_breakdown", "timers"),
        *("disable_allgather", "dataloader_drop_last", "nebula", "data_parallel_size", "train_iters", "eigenvalue"),
    }
)
"""Settings that change neither memory nor speed by more than a formula's error, or of which the file says no more."""
READ = frozenset(
    {
        *(*BATCH, CLIPPING, "optimizer", "fp16", "bf16", "bfloat16", "zero_optimization", "tensor_parallel"),
        *("pipeline", "sequence_parallel_size"),
    }
)
OF_ZERO = frozenset(
    {
        *("stage", "offload_param", "offload_optimizer", *OLD_OFFLOAD.values(), "cpu_offload_use_pin_memory"),
        *("zero_hpz_partition_size", "zero_quantized_weights", "zero_quantized_gradients", "mics_shard_size"),
        *("zero_quantized_nontrainable_weights", "mics_hierarchical_params_gather", "allgather_partitions"),
        *("allgather_bucket_size", "overlap_comm", "reduce_scatter", "reduce_bucket_size", "contiguous_gradients"),
        *("load_from_fp32_weights", "sub_group_size", "elastic_checkpoint", "round_robin_gradients", "legacy_stage1"),
        *("memory_efficient_linear", "pipeline_loading_checkpoint", "override_module_apply"),
        *("ignore_unused_parameters", "use_multi_rank_bucket_allreduce", "log_trace_cache_warnings"),
        *("gather_16bit_weights_on_model_save", "enable_sanity_checks", "leaf_module", "prefetch_bucket_size"),
        *("param_persistence_threshold", "model_persistence_threshold", "max_live_parameters", "max_reuse_distance"),
        *("use_all_reduce_for_fetch_params", "module_granularity_threshold", "zero_module_granularity_threshold"),
    }
)
"""Settings of `zero_optimization` that are read, or set the sizes of buffers."""
OF_STAGE_3 = "stage3_"
UNMODELLED_16 = ("fp16_master_weights_and_grads", "bf16_master_weights_and_grads", "bf16_optimizer_states")


def is_deepspeed(table: Mapping[str, object]) -> bool:
    return not KEYS.isdisjoint(table)


def read_deepspeed(source: str, table: Mapping[str, object], *, shape: Transformer | None, gpus: int) -> TrainingPlan:
    """The plan on `gpus` GPUs, which share data and the axes that the file states. Raises UsageError for wrong values.

    The table `activation_checkpointing` configures recomputation; the training's code decides whether it is used.
    `fp16_master_weights_and_grads` keeps the optimizer's state in fp32 (deepspeed/runtime/zero/stage_1_and_2.py).
    """
    top, zero = Values(source, {"": table}, ""), Values(source, table, "zero_optimization")
    left_open = [key for key in BATCH if top.left_open(key)]
    axis = top.table("tensor_parallel")
    tp = axis.whole("autotp_size", 0) or axis.table("tp").whole("tp_size", 1)
    layout = None if left_open else _layout(top, zero, tp=tp, gpus=gpus)
    clips = None if top.left_open(CLIPPING) else top.number(CLIPPING, 0.0) > 0
    return TrainingPlan(
        framework="DeepSpeed",
        open_because=f"{', '.join(left_open)}: {AUTO}; write the numbers of the training" if left_open else "",
        unmodelled=tuple(dict.fromkeys(_unmodelled(top, zero))),
        shape=shape,
        layout=layout,
        tp=tp,
        pp=1,
        vocabulary=None if shape is None else shape.vocabulary,
        head_dim=None if shape is None else shape.query_width // shape.heads,
        clips=clips,
        optimizer_states="fp32",
        watches_stragglers=False,
    )


def _layout(top: Values, zero: Values, *, tp: int, gpus: int) -> Layout:
    """Layout and batch. Ranks of Ulysses' sequence parallelism share a sequence, and not the batch."""
    cp = top.whole("sequence_parallel_size", 1)
    dp = top.quotient(gpus, tp * cp, of="tensor x sequence parallel sizes")
    micro, accumulation = _microbatches(top, dp)
    shards = zero.whole("mics_shard_size", -1)
    return Layout(
        dp=dp,
        tp=tp,
        cp=cp,
        cp_method=ULYSSES if cp > 1 else RING,
        zero=zero.whole("stage", 0),
        **_off_device(zero, stage=zero.whole("stage", 0)),
        replicas=1 if shards < 1 else top.quotient(dp, shards, of="ranks of mics_shard_size"),
        microbatches=accumulation,
        micro_batch=micro,
        overlap=Overlap.DATA,
        fused_sums=False,
    )


class OffDevice(TypedDict):
    """Settings of a layout for ZeRO++ and offload."""

    node_ranks: int | None
    quantize_weights: bool
    quantize_gradients: bool
    optimizer_place: Place
    parameters_place: Place


def _off_device(zero: Values, *, stage: int) -> OffDevice:
    """ZeRO++ and offload, as far as DeepSpeed has them at this stage: weights leave a device only at stage 3."""
    node_ranks = zero.whole("zero_hpz_partition_size", 1)
    return OffDevice(
        node_ranks=node_ranks if node_ranks > 1 and stage == 3 else None,
        quantize_weights=_is_on(zero.get("zero_quantized_weights")) and stage == 3,
        quantize_gradients=_is_on(zero.get("zero_quantized_gradients")) and stage == 3,
        optimizer_place=_place(zero, "offload_optimizer") if stage else Place.DEVICE,
        parameters_place=_place(zero, "offload_param") if stage == 3 else Place.DEVICE,
    )


def _place(zero: Values, part: str) -> Place:
    device = zero.table(part).text("device", "none")
    if device == "none":
        return Place.CPU if _is_on(zero.get(OLD_OFFLOAD[part])) else Place.DEVICE
    try:
        return Place(device)
    except ValueError as error:
        raise zero.table(part).wrong("device", device, "none, cpu or nvme") from error


def _unmodelled(top: Values, zero: Values) -> Iterator[str]:
    """Yield the settings without a formula."""
    if _is_on(zero.get("zero_quantized_nontrainable_weights")):
        yield "quantized weights"
    stages = top.table("pipeline").get("stages") if isinstance(top.get("pipeline"), Mapping) else None
    if stages not in (None, 1, AUTO):
        yield "a pipeline"
    low = [top.table(name) for name in ("bf16", "bfloat16", "fp16")]
    if not any(each.get("enabled") in (True, AUTO) for each in low):
        yield "a training in fp32 (neither bf16 nor fp16 is enabled)"
    if any(_is_on(each.get(key)) for each in low for key in UNMODELLED_16):
        yield "an optimizer of 16 bits"
    optimizer = top.table("optimizer").text("type", AUTO)
    if optimizer.lower() not in ADAM:
        yield f"the optimizer {optimizer}"
    yield from (f"the setting {name}" for name in top.names() if name not in HARMLESS | READ and top.is_used(name))
    for name in zero.names():
        if name not in OF_ZERO and not name.startswith(OF_STAGE_3) and zero.is_used(name):
            yield f"the setting zero_optimization.{name}"


def _is_on(value: object) -> bool:
    return value is True or (type(value) is int and value > 1)


def _microbatches(top: Values, dp: int) -> tuple[int, int]:
    """Sequences of a microbatch, and microbatches of a step. One that is missing follows from `train_batch_size`."""
    keys = BATCH[:2]
    micro, accumulation = (top.whole(key, 1) for key in keys)
    if not top.given("train_batch_size"):
        return micro, accumulation
    batch, divisor = top.whole("train_batch_size", 1), dp * micro * accumulation
    if all(map(top.given, keys)):
        if batch != divisor:
            raise top.wrong("train_batch_size", batch, f"data ranks x microbatch x accumulation = {divisor}")
        return micro, accumulation
    if divisor < 1 or batch < 1 or batch % divisor:
        raise top.wrong("train_batch_size", batch, f"a multiple of data ranks x microbatch x accumulation = {divisor}")
    return (micro, batch // divisor) if top.given(keys[0]) else (batch // divisor, accumulation)
