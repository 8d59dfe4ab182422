"""torchtitan's TOML: pytorch/torchtitan, torchtitan/config/job_config.py, with its defaults."""

from collections.abc import Mapping

from traincope.plan.check.readers.values import Values
from traincope.plan.check.training_plan import TrainingPlan
from traincope.plan.layout.layout import Layout
from traincope.plan.model.flops import Recompute
from traincope.plan.model.transformer import Transformer

SCHEDULES = {"1F1B": "1f1b", "GPipe": "gpipe", "Interleaved1F1B": "interleaved", "ZBVZeroBubble": "zb-v"}


def is_torchtitan(tables: Mapping[str, object]) -> bool:
    return "parallelism" in tables or ("training" in tables and "job" in tables)


def read_torchtitan(source: str, tables: Mapping[str, object], *, shape: Transformer | None, gpus: int) -> TrainingPlan:
    """The plan on `gpus` GPUs. Raises UsageError for values of a wrong kind and an impossible layout."""
    parallel, training = Values(source, tables, "parallelism"), Values(source, tables, "training")
    checkpoint, recompute = Values(source, tables, "checkpoint"), Values(source, tables, "activation_checkpoint")
    tp = parallel.whole("tensor_parallel_degree", 1)
    pp = parallel.whole("pipeline_parallel_degree", 1)
    saves = checkpoint.flag("enable", checkpoint.flag("enable_checkpoint", False))
    return TrainingPlan(
        framework="torchtitan",
        shape=shape,
        layout=_layout(parallel, training, tp=tp, pp=pp, gpus=gpus),
        tp=tp,
        pp=pp,
        vocabulary=None if shape is None else shape.vocabulary,
        head_dim=None if shape is None else shape.query_width // shape.heads,
        recompute={"none": Recompute.NONE, "full": Recompute.FULL}.get(recompute.text("mode", "selective")),
        clips=training.number("max_norm", 1.0) > 0,
        optimizer_states="fp32",
        steps=training.whole("steps", 10_000),
        checkpoint_steps=checkpoint.whole("interval", 500) if saves else None,
        saves=saves,
        blocking_saves=checkpoint.text("async_mode", "disabled") == "disabled" if saves else None,
        watches_stragglers=False,
    )


def _layout(parallel: Values, training: Values, *, tp: int, pp: int, gpus: int) -> Layout | None:
    """Layout; None for a schedule that is not known here."""
    schedule = SCHEDULES.get(parallel.text("pipeline_parallel_schedule", "1F1B"))
    if schedule is None and pp > 1:
        return None
    cp = parallel.whole("context_parallel_degree", 1)
    dp = parallel.quotient(gpus, tp * pp * cp, of="tensor x pipeline x context parallel degrees")
    local = training.whole("local_batch_size", training.whole("batch_size", 8))
    whole = training.whole("global_batch_size", -1)
    micro = parallel.whole("pipeline_parallel_microbatch_size", 1) if pp > 1 else local
    sequences = local if whole < 0 else max(whole // dp, 1)
    return Layout(
        dp=dp,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=parallel.whole("expert_parallel_degree", 1),
        zero=1 if pp > 1 else 3,
        schedule=schedule or "1f1b",
        microbatches=max(sequences // micro, 1),
        micro_batch=micro,
    )
