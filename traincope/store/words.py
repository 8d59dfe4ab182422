"""Names that traincope and torch define. A redacted copy keeps exactly these.

They are listed in full, because a pattern could match a user's names.
"""

import re

from traincope.events import (
    BATCH_ON_DEVICE,
    BATCH_READ,
    BATCH_WITHOUT_TENSORS,
    BATCHES_END,
    BUSY_THREAD,
    CHECKPOINT_FAILED,
    CHECKPOINT_NOT_UPLOADED,
    CHECKPOINT_SAVED,
    CHECKPOINT_UPLOADED,
    DEBUG_TOOL,
    EXCEPTION,
    FIRST_JUMP,
    FIRST_NOT_FINITE,
    GROUP_DESTROYED,
    KERNEL_LOG,
    LEARNING_RATES,
    LEFT,
    LINK_CHANGED,
    LINK_ERRORS,
    LOADER,
    LOADER_WITHOUT_WORKERS,
    OUTSIDE_DDP,
    OUTSIDE_UNITS,
    RECORDER_LEVEL,
    REQUESTED_WINDOW,
    RESUMED,
    ROLLBACK,
    SIGNAL_HANDLED,
    SKIPPED_STEP,
    TENSOR_CENSUS,
    THREAD_ENDED,
)
from traincope.topology import KNOWN_AXES

EVENTS = frozenset(
    {
        EXCEPTION,
        LEFT,
        THREAD_ENDED,
        BUSY_THREAD,
        DEBUG_TOOL,
        GROUP_DESTROYED,
        LEARNING_RATES,
        OUTSIDE_DDP,
        OUTSIDE_UNITS,
        SIGNAL_HANDLED,
        FIRST_JUMP,
        FIRST_NOT_FINITE,
        RECORDER_LEVEL,
        REQUESTED_WINDOW,
        RESUMED,
        ROLLBACK,
        SKIPPED_STEP,
        CHECKPOINT_SAVED,
        CHECKPOINT_FAILED,
        CHECKPOINT_UPLOADED,
        CHECKPOINT_NOT_UPLOADED,
        TENSOR_CENSUS,
        "checkpoint interval",
        "kernel window",
        "kernel window left out",
        "gpu throttled",
        "gpu not throttled",
        "gpu ecc error",
        "gpu rows remapped",
        "gpu xid",
        "gpu lost",
        "gpu nvlink errors",
        LINK_CHANGED,
        LINK_ERRORS,
        KERNEL_LOG,
    }
)
"""Names of the recorder's own events."""

DETAILS = frozenset(
    {
        *("type", "handling", "link", "signal_handler", "signal", "call", "why", "reasons", "meaning", "of"),
        "counts",
    }
)
"""Details whose text comes from the recorder too; of other details only numbers are kept."""

LINK_COUNTS = (
    *("symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_xmit_discards"),
    *("local_link_integrity_errors", "packet_seq_err", "local_ack_timeout_err", "implied_nak_seq_err"),
    *("rx_icrc_encapsulated", "retrans_pkts", "retrans_timeout_events", "rx_errors", "tx_errors", "tx_carrier_errors"),
    *("carrier_down_count", "retransmitted segments", "corrected errors", "uncorrected errors"),
)
"""Counts of errors of links, by the kernel's names."""

LINKS = frozenset(
    {
        *("kind", "card", "up", "bits_per_second", "first_bits_per_second", "width", "sent_bytes", "received_bytes"),
        *("errors", *LINK_COUNTS),
        *("holds", "gpu", "transfers", "max_transfers", "max_width"),
        *("InfiniBand", "RoCE", "Ethernet", "TCP", "GPU"),
    }
)
"""Fields of a link in `rank.json`, and texts of theirs that the recorder gives."""

CPU_LIMITS = frozenset({"allowed", "cores", "quota"})
"""Keys of a rank's CPU limits."""

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
"""Schedule classes of torch; empty if the schedule is unknown."""

CALLS = frozenset(
    {
        "<other names>",
        BATCH_READ,
        BATCHES_END,
        BATCH_ON_DEVICE,
        BATCH_WITHOUT_TENSORS,
        "backward",
        "gc",
        LOADER,
        LOADER_WITHOUT_WORKERS,
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
        "loss_scale",
        "expert_padding",
        "expert_dropped",
        "redundant_flops",
        "step_tokens",
        "step_squared_lengths",
        "step_formula_squared_lengths",
    }
)
"""Values that `traincope train` logs, and values that give the size of a step."""
EXPERT = re.compile(r"expert_tokens\[\d+\.\d+\]")
"""Tokens of each expert, by layer and number."""

SETTINGS = frozenset(
    {
        *("tokens_per_step", "squared_lengths_per_step", "routed_tokens_per_step"),
        *("model_flops_per_step", "flops_per_token", "flops_per_squared_length", "flops_per_routed_token"),
        *("flops_dtype", "peak_flops", "peak_source"),
    }
)
"""Settings of `run.describe()`."""

DTYPES = frozenset(
    {"float64", "float32", "tf32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8", "complex64"}
)

TEXTS = DTYPES | {"measured, every rank multiplying at once"}
"""Texts of settings: the data type of a peak, and the source that `traincope train` gives for it."""

AXIS_PARTS = frozenset(part for axis in KNOWN_AXES for part in axis.split("_")) | {
    "shard",
    "etp",
    "edp",
    "embedding",
    "world",
    "unknown",
    "unregistered",
}
OWN_GROUPS = frozenset({"checkpoint", "checkpoint cadence"})
"""Groups that the engine makes."""
GROUP = re.compile(r"group:[\d,]*")
"""A group without a name, by its ranks."""


def is_known_name(name: str) -> bool:
    """True if a redacted copy keeps this name."""
    return name in EVENTS | SCHEDULES | CALLS | VALUES or EXPERT.fullmatch(name) is not None


def is_known_axis(axis: str) -> bool:
    """True for a standard mesh axis, a combination of them (`dp_shard_cp`), or a group of the engine."""
    return axis in OWN_GROUPS or GROUP.fullmatch(axis) is not None or AXIS_PARTS.issuperset(axis.split("_"))
