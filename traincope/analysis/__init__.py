"""Pure functions from a Timeline to frozen results; showing them is elsewhere.

`host` cuts a rank's thread into pieces, `stalls` splits waiting from transfer or says by `unsplit` why not,
`pipeline`, `schedule` and `bubble` explain pipeline idle time and `roots` its jitter, `coverage` says which steps
count, `ledger` sums, `comm`, `uneven`, `hot_experts`, `stragglers`, `deaths`, `idling`, `exposed` and `losses` say
what the sums mean, `verdict` orders it.
`releases` says who let whom go on, and `critical_path` follows that through a step; `what_if` plays steps again
with something changed, `diff` compares two runs.
`counted`, `work` and `peaks` make `utilization`.
`gpu_partition` and `kernels` (with `kernel_classes`, `products`, `overlap`) read kernel traces; `contention` says what
axes cost each other on the wire. `finer_losses` lists losses by their causes, `cost` says what time costs in
rank-hours and money.
`group_waits`, `call_sites`, `own_work`, `gaps` and `samples` are what pictures need beside that: who waited where,
which block sent what, whose work is long since when, what each gap of a pipeline step is, and what was looked at once
a step.
`endings`, `logged`, `slowness` and `marks` make the stream of `faults`; `memory`, `experts` and `goodput` stand alone.
`analyze` runs them: a new analysis is one file, one field of `Analysis` and one line there.
"""

from traincope.analysis.analyze import Analysis, analyze
from traincope.analysis.bubble import Bubble, StageBubble
from traincope.analysis.call_sites import Called, RankCalls, all_calls
from traincope.analysis.comm import AxisOperation, MessageSize
from traincope.analysis.contention import Contention
from traincope.analysis.cost import Cost, cost, price_of, rank_hours
from traincope.analysis.coverage import OwnTime, dropped_steps, guessed_steps, in_a_row, own_time
from traincope.analysis.critical_path import CriticalPath, Segment, StepPath
from traincope.analysis.device_stalls import DeviceStall
from traincope.analysis.diff import Basis, Diff, Judgement, Moved, diff
from traincope.analysis.diff_settings import Difference
from traincope.analysis.experts import ExpertLoads, LayerLoad
from traincope.analysis.faults import Fault, FaultKind
from traincope.analysis.findings import Finding, FindingKind
from traincope.analysis.finer_losses import FinerLoss, LossKind, Scope, finer_losses
from traincope.analysis.gaps import Gap, Schedule, recorded_schedule, theoretical_schedule
from traincope.analysis.goodput import Goodput
from traincope.analysis.gpu_partition import GpuPartition
from traincope.analysis.group_waits import GroupWait
from traincope.analysis.kernels import ClassTime, Kernels
from traincope.analysis.ledger import Ledger, RankLedger
from traincope.analysis.memory import MemoryUse
from traincope.analysis.own_work import OwnWork, own_work
from traincope.analysis.roots import Root
from traincope.analysis.samples import Samples, gpu_samples, logged_samples, memory_samples
from traincope.analysis.stragglers import RankWait, Straggler, Stragglers
from traincope.analysis.uneven import Uneven
from traincope.analysis.utilization import Utilization, waterfall_of
from traincope.analysis.what_if import Change, Prediction, parse_changes, what_if

__all__ = [
    "Analysis",
    "AxisOperation",
    "Basis",
    "Bubble",
    "Called",
    "Change",
    "ClassTime",
    "Contention",
    "Cost",
    "CriticalPath",
    "DeviceStall",
    "Diff",
    "Difference",
    "ExpertLoads",
    "Fault",
    "FaultKind",
    "Finding",
    "FindingKind",
    "FinerLoss",
    "Gap",
    "Goodput",
    "GpuPartition",
    "GroupWait",
    "Judgement",
    "Kernels",
    "LayerLoad",
    "Ledger",
    "LossKind",
    "MemoryUse",
    "MessageSize",
    "Moved",
    "OwnTime",
    "OwnWork",
    "Prediction",
    "RankCalls",
    "RankLedger",
    "RankWait",
    "Root",
    "Samples",
    "Schedule",
    "Scope",
    "Segment",
    "StageBubble",
    "StepPath",
    "Straggler",
    "Stragglers",
    "Uneven",
    "Utilization",
    "all_calls",
    "analyze",
    "cost",
    "diff",
    "dropped_steps",
    "finer_losses",
    "gpu_samples",
    "guessed_steps",
    "in_a_row",
    "logged_samples",
    "memory_samples",
    "own_time",
    "own_work",
    "parse_changes",
    "price_of",
    "rank_hours",
    "recorded_schedule",
    "theoretical_schedule",
    "waterfall_of",
    "what_if",
]
