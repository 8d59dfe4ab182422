"""Results as JSON: the fields of a result's class are its keys, except where KEYS lists others.

No values are computed here, except those that a result's properties compute.
"""

from collections.abc import Hashable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar, cast

from traincope.analysis.communication.axis_operations import AxisOperation
from traincope.analysis.communication.workflow import Job
from traincope.analysis.critical_path import CriticalPath, Segment
from traincope.analysis.diff.diff import Diff, TermChange
from traincope.analysis.efficiency.cost import Cost
from traincope.analysis.efficiency.energy import Energy, GpuEnergy
from traincope.analysis.efficiency.experts import ExpertLoads, LayerLoad
from traincope.analysis.efficiency.goodput import Goodput
from traincope.analysis.efficiency.utilization import Utilization
from traincope.analysis.faults.anomalies.corruption import StateChecks, StateShare
from traincope.analysis.faults.anomalies.data_order import Continuation
from traincope.analysis.faults.faults import Fault
from traincope.analysis.faults.hangs.hang import Hang
from traincope.analysis.faults.shortages import OutOfMemory
from traincope.analysis.faults.slow_code import SampledWindow, SlowCode
from traincope.analysis.kernels.gpu_partition import GpuPartition
from traincope.analysis.kernels.kernels import ClassTime, Kernels, NamedTime
from traincope.analysis.kernels.queue_length import QueueLength
from traincope.analysis.kernels.roofline import Roofline
from traincope.analysis.kernels.unfused import Chain, Unfused
from traincope.analysis.ledger.ledger import Ledger, RankLedger
from traincope.analysis.ledger.run_ahead import RunAhead
from traincope.analysis.ledger.sampling import Sampling
from traincope.analysis.memory.snapshots import RankSnapshot
from traincope.analysis.pipeline.bubble import Bubble, StageBubble
from traincope.analysis.reliability.cadence import Cadence, Saves
from traincope.analysis.reliability.interruptions import Interruption
from traincope.analysis.reliability.reliability import Reliability
from traincope.analysis.reliability.rolling import Rolling
from traincope.analysis.stragglers.patterns import Pattern
from traincope.analysis.stragglers.slow_groups import SlowGroup
from traincope.analysis.stragglers.stragglers import RankWait, Straggler, Stragglers, TermExcess
from traincope.analysis.verdict.findings import Finding
from traincope.analysis.verdict.losses.term_causes import TermCauses
from traincope.plan.pipeline.schedule import TimedAction
from traincope.store import Attempt
from traincope.store.job.manifests import RunInfo
from traincope.timeline import OpenRecord, RankClock

T = TypeVar("T")

KEYS: dict[type, str] = {
    Attempt: "attempt=number began=began_ns first_step=first_step_ns last=last_ns steps=num_steps resumed_step"
    " rolled_back_steps=undone_steps clean",
    AxisOperation: "axis op=operation count bytes=num_bytes transfer_ns wait_ns exposed_ns"
    " bus_bandwidth_bytes_per_second=bus_bandwidth message_imbalance contention",
    CriticalPath: "steps=num_steps wall_ns terms ranks untold_ns clock_error_ns reason step segments",
    Segment: "rank term start_ns duration_ns=length_ns",
    Energy: "joules_per_step watts kwh terms gpus price_per_kwh currency money reason",
    GpuEnergy: "ranks joules_per_step watts steps reading_ns",
    ExpertLoads: "layers dropped_ratio padding_ratio",
    LayerLoad: "layer tokens hottest hottest_ratio=ratio",
    Goodput: "attempts elapsed_ns steps_done steps_ns steps_lost lost_ns reason steps_rolled_back rolled_back_ns"
    " steps_skipped skipped_ns startup_ns restart_ns checkpoint_stall_ns evaluation_ns other_ns productive_ns"
    " productive_ratio",
    Utilization: "mfu=ratios.mfu mfu_paper=ratios.mfu_paper mfu_job=ratios.mfu_job mfu_job_reason=job_reason"
    " hfu=ratios.hfu tokens_per_second flops_convention=work.convention reason model_flops_per_step=work.model"
    " executed_flops_per_step=work.executed recomputed_flops_per_step=work.recomputed"
    " redundant_flops_per_step=work.redundant coverage_ratio=work.coverage_ratio ideal_ns=ratios.ideal_ns"
    " waterfall=ratios.waterfall peak_flops=peak.flops peak_source=peak.origin experts",
    StateChecks: "num_checks first_step last_step parameters optimizer_state check_ns edited_checks",
    StateShare: "num_bytes voted_bytes voted_ratio held_bytes held_ratio",
    Continuation: "attempt step ranks order num_batches first_step last_step reason what loss_before loss_after",
    SampledWindow: "first_step last_step steps ranks slow",
    SlowCode: "rank site=line.site function=line.function called=line.called module=line.module term=line.term ns"
    " peers_ns",
    GpuPartition: "rank device traces=num_traces gpu_events span_ns compute_ns communication_ns"
    " exposed_communication_ns exposed_memory_ns idle_ns",
    QueueLength: "rank stream computes works=num_works unlaunched=num_unlaunched span_ns mean empty_ratio steps reason",
    Roofline: "operators took_ns bytes=num_bytes bytes_per_second memory_ratio product_ns flops flops_per_second"
    " compute_ratio flops_per_byte=intensity memory_bound_ns bound",
    Chain: "operators phase count kernels=num_kernels total_ns saved_bytes=saving.num_bytes saved_ns=saving.ns reason",
    Unfused: "count kernels=num_kernels total_ns in_steps_ns steps_ns rated_ns saved_bytes=saving.num_bytes"
    " saved_ns=saving.ns chains",
    Hang: "kind state cannot_go_on culprits suspects host victims group axis collective step call_site"
    " stack doing since=since_ns lasted_ns detected_after_seconds confidence evidence",
    OutOfMemory: "rank step phase by_kernel request_bytes limit_bytes free_bytes split use grown_bytes"
    " remedy=remedy.text saved_bytes=remedy.saved_bytes",
    RankSnapshot: "rank source device=memory.device segments=memory.segments"
    " expandable_segments=memory.expandable_segments reserved_bytes=memory.reserved_bytes"
    " allocated_bytes=memory.allocated_bytes requested_bytes=memory.requested_bytes"
    " awaiting_free_bytes=memory.awaiting_free_bytes inactive_bytes=memory.inactive_bytes"
    " largest_inactive_bytes=memory.largest_inactive_bytes peak_bytes=memory.peak_bytes times_us=memory.times_us"
    " history_bytes=memory.history_bytes out_of_memory_bytes=memory.out_of_memory_bytes sites=memory.sites",
    Bubble: "schedule microbatches=num_microbatches stages_per_rank=chunks stages fraction_ratio theory_ratio"
    " replay_ratio timetable_step=step timetable=rows",
    TimedAction: "kind=action.kind stage=action.stage microbatch=action.microbatch start_ns=start end_ns=end",
    StageBubble: "stage others ranks schedule_ns imbalance_ns jitter_ns wall_ns fraction_ratio",
    Cadence: "interval_ns best_ns best_low_ns best_high_ns lost_ratio best_lost_ratio gain_ratio certain",
    Saves: "count stall_ns longest_ns background_ns cost_ns interval_ns",
    Interruption: "attempt cause what count at=at_ns to_the_day detect_ns restart_ns lost_steps lost_ns",
    Reliability: "elapsed_ns running_ns running_ratio productive_ratio productive_low_ratio productive_high_ratio"
    " reason num_interruptions interruptions causes badput mtbf mtbf_reason mean_detect_ns mean_restart_ns"
    " rolling saves cadence",
    Rolling: "window_ns ends=ends_ns ratios",
    RankClock: "rank offset_ns bound_ns drift_ppm source",
    RankWait: "rank compute_ns own_wait_ns straggler_wait_ns",
    Straggler: "rank confidence caused_ratio=caused_share excess_ratio late_ns gain_ratio cause terms pattern usage",
    Stragglers: "named groups steps steps_needed ranks",
    Sampling: "steps sampled_steps first_sampled last_sampled windows budget_ratio own_ratio requested"
    " measured_overhead",
    RunInfo: "id imported world_size mesh_axes=mesh start=started_wall_ns versions",
    Ledger: "clock wall_ns rank_steps timed_steps evaluation_ns evaluation_ratio",
    RankLedger: "rank steps=num_counted wall_ns=total_wall_ns",
    RunAhead: "median_ns empty_ratio",
    Cost: "wall_rank_hours=wall_hours rank_hours=hours price_per_gpu_hour wall_money money",
    TermCauses: "scope terms ns rest_ns",
    ClassTime: "kind=name family count total_ns fused_ns rated_ns=rated.took_ns ideal_ns=rated.ideal_ns inefficiency_ns"
    " roofline roofline_reason",
    Kernels: "source ranks steps traces=num_traces total_ns unknown_ratio longest"
    " beside_communication=overlap.num_beside beside_communication_ns=overlap.beside_ns compared=overlap.num_compared"
    " compared_ns=overlap.compared_ns overlap_slowdown_ns=overlap.slowdown_ns",
    Finding: "kind ranks steps confidence evidence advice estimated_gain_ratio gain_at_most",
    Fault: "kind mark=is_mark at_ns timed ranks step attempt training_step what evidence confidence lasted_ns follows"
    " traceback",
    OpenRecord: "what axis step",
    TermChange: "term before after change steps p steps_needed evident path_change rank rank_change",
    Diff: "judgement basis reason interval unseen threshold_ratio settings",
}
"""Class -> its keys in order: fields and properties. `key=a.b` is attribute `b` of its `a`, or null if `a` is null.

Of a class that a type of this package completes with derived values: the other keys of that type.
"""
NAMES: Mapping[type, str] = {
    AxisOperation: "Operation",
    ExpertLoads: "Experts",
    Job: "WorkflowJob",
    LayerLoad: "ExpertLayer",
    NamedTime: "Kernel",
    RankSnapshot: "MemorySnapshot",
    Pattern: "StragglerPattern",
    TimedAction: "ActionTime",
    SlowGroup: "StragglerGroup",
    StageBubble: "Stage",
    TermExcess: "StragglerTerm",
}
"""Class -> its name in the schema, where that is another one."""


def plain(value: Any) -> Any:
    """Convert a result to JSON values: tuples become lists, enums their values, results objects."""
    if is_dataclass(value) or type(value) in KEYS:
        return {key: plain(_at(value, path)) for key, path in keys(cast(Hashable, type(value))).items()}
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return value.value if isinstance(value, Enum) else value


def convert(source: object, kind: type[T], **derived: object) -> T:
    """Return a `kind`, a part that is not one result: from the keys of `source`, and from `derived` values.

    Raises TypeError for a key of `source` or a name in `derived` that `kind` lacks, KeyError for a key without a value.
    """
    names, values = kind.__annotations__, plain(source) | derived
    if unknown := values.keys() - names.keys():
        raise TypeError(f"{kind.__name__} has no {', '.join(sorted(unknown))}")
    return cast(T, {key: values[key] for key in names})


@cache
def keys(kind: type) -> Mapping[str, tuple[str, ...]]:
    """Key -> names of the attributes on the way to its value."""
    listed = KEYS[kind].split() if kind in KEYS else [field.name for field in fields(kind)]
    words = (word.partition("=") for word in listed)
    return {key: tuple((path or key).split(".")) for key, _, path in words}


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        value = None if value is None else getattr(value, name)
    return value
