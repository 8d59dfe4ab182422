"""DeepSpeed's JSON: deepspeed.ai/docs/config-json."""

from collections.abc import Mapping

from traincope.plan.check.readers.values import Values
from traincope.plan.check.training_plan import TrainingPlan
from traincope.plan.layout.layout import Layout
from traincope.plan.model.flops import Recompute
from traincope.plan.model.transformer import Transformer

KEYS = {"train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization", "gradient_accumulation_steps"}


def is_deepspeed(table: Mapping[str, object]) -> bool:
    return not KEYS.isdisjoint(table)


def read_deepspeed(source: str, table: Mapping[str, object], *, shape: Transformer | None, gpus: int) -> TrainingPlan:
    """The plan on `gpus` GPUs that share data only. Raises UsageError for values of a wrong kind."""
    top, zero = Values(source, {"": table}, ""), Values(source, table, "zero_optimization")
    checkpointing = table.get("activation_checkpointing")
    micro = top.whole("train_micro_batch_size_per_gpu", 1)
    accumulation = top.whole("gradient_accumulation_steps", 1)
    if "gradient_accumulation_steps" not in table and "train_batch_size" in table:
        accumulation = max(top.whole("train_batch_size", 1) // (micro * gpus), 1)
    half = Values(source, table, "fp16")
    all_half = half.flag("enabled", False) and half.flag("fp16_master_weights_and_grads", False)
    return TrainingPlan(
        framework="DeepSpeed",
        shape=shape,
        layout=Layout(dp=gpus, zero=zero.whole("stage", 0), microbatches=accumulation, micro_batch=micro),
        tp=1,
        pp=1,
        vocabulary=None if shape is None else shape.vocabulary,
        head_dim=None if shape is None else shape.query_width // shape.heads,
        recompute=Recompute.FULL if checkpointing else None,
        clips=top.number("gradient_clipping", 0.0) > 0,
        optimizer_states="fp16" if all_half else "fp32",
        watches_stragglers=False,
    )
