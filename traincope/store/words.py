"""The words that traincope and torch give by themselves: all that a copy without names goes on saying.

Each stands here whole. A pattern lets through what a training calls its own things.
"""

import re

from traincope.topology import KNOWN_AXES

EVENTS = frozenset(
    {
        "exception",
        "recorder level",
        "checkpoint saved",
        "checkpoint failed",
        "kernel window",
        "kernel window left out",
        "gpu throttled",
        "gpu not throttled",
        "gpu ecc error",
        "gpu rows remapped",
        "gpu xid",
        "gpu lost",
    }
)
"""The recorder's own."""

DETAILS = frozenset({"type", "handling", "why", "reasons", "meaning", "of"})
"""Details of those whose text is the recorder's too; of the others only the numbers are shown."""

SCHEDULES = frozenset(
    {
        "",
        "PipelineScheduleSingle",
        "PipelineScheduleMulti",
        "ScheduleGPipe",
        "Schedule1F1B",
        "ScheduleLoopedBFS",
        "ScheduleInterleaved1F1B",
        "ScheduleInterleavedZeroBubble",
        "ScheduleZBVZeroBubble",
        "ScheduleDualPipeV",
        "_ScheduleForwardOnly",
        "_PipelineScheduleRuntime",
    }
)
"""torch's; the first is where none is known."""

CALLS = frozenset(
    {
        "<other names>",
        "backward",
        "gc",
        "DataLoader",
        "zero_grad",
        "clip_grad_norm_",
        "clip_grad_value_",
        "clip_grads_with_norm_",
        "get_total_norm",
        "save checkpoint",
        "load checkpoint",
        "async_save checkpoint",
        *"FBIW",
    }
)
"""Phases and pipeline actions."""

VALUES = frozenset(
    {
        "loss",
        "grad_norm",
        "expert_padding",
        "expert_dropped",
        "redundant_flops",
        "step_tokens",
        "step_squared_lengths",
    }
)
"""What `traincope train` logs, and whatever says how large a step was."""
EXPERT = re.compile(r"expert_tokens\[\d+\.\d+\]")
"""And what each expert got, by layer and number."""

SETTINGS = frozenset(
    {
        *("tokens_per_step", "squared_lengths_per_step", "routed_tokens_per_step"),
        *("model_flops_per_step", "flops_per_token", "flops_per_squared_length", "flops_per_routed_token"),
        *("flops_dtype", "peak_flops", "peak_source"),
    }
)
"""What `run.describe()` is asked for."""

DTYPES = frozenset(
    {"float64", "float32", "tf32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8", "complex64"}
)

TEXTS = DTYPES | {"measured, every rank multiplying at once"}
"""Of settings: what a peak is of, and where `traincope train` has it from."""

AXIS_PARTS = frozenset(part for axis in KNOWN_AXES for part in axis.split("_")) | {
    "shard",
    "etp",
    "edp",
    "embedding",
    "world",
    "unknown",
    "unregistered",
}
GROUP = re.compile(r"group:[\d,]*")
"""A group that nothing names, by its ranks."""


def is_own_name(name: str) -> bool:
    """Whether records of any kind may go on saying it."""
    return name in EVENTS | SCHEDULES | CALLS | VALUES or EXPERT.fullmatch(name) is not None


def is_own_axis(axis: str) -> bool:
    """Whether it is a mesh axis as the field names them, alone or of several: `dp_shard_cp`."""
    return GROUP.fullmatch(axis) is not None or AXIS_PARTS.issuperset(axis.split("_"))
