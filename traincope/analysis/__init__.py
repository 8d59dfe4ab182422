"""Analyses: pure functions from a `Timeline` to frozen results. They print and draw nothing.

Each room answers one question:

- `attribution`: what owns each instant of a rank's time, and which part of a stall is wait;
- `ledger`: which terms each step's wall time consists of, and which steps count;
- `pipeline`: why stages of a pipeline idle;
- `communication`: what each mesh axis sent, from which call sites, and at what cost;
- `stragglers`: which rank the others waited for;
- `kernels`: what GPUs and kernels did, from kernel traces;
- `memory`: what each rank's memory is used for, and which ranks and tensors grow;
- `efficiency`: MFU, goodput, work, cost, expert loads and samples;
- `faults`: what went wrong, and when;
- `reliability`: how often the job was interrupted, and at what cost;
- `replaying`: how long the recorded steps take with other times, and the gains that this shows;
- `verdict`: findings with confidence, gain and advice;
- `what_if`: how long steps would take after a change;
- `diff`: what differs between two runs.

`critical_path` follows each step's chain of waits. `context` holds the results that several analyses share.
`analyze` runs all of them: a new analysis is one file, one field of `Analysis` and one line there.
"""

from traincope.analysis.analyze import Analysis, analyze
from traincope.analysis.communication.axis_operations import AxisOperation, MessageImbalance, MessageSize
from traincope.analysis.communication.call_sites import CallSite, RankCalls, all_calls, without_places
from traincope.analysis.communication.contention import Contention
from traincope.analysis.communication.group_waits import GroupWait
from traincope.analysis.critical_path import CriticalPath, Segment, StepPath
from traincope.analysis.diff.diff import Basis, Diff, Judgement, TermChange, diff
from traincope.analysis.diff.settings import Difference
from traincope.analysis.efficiency.cost import Cost, cost, price_of, rank_hours
from traincope.analysis.efficiency.experts import ExpertLoads, LayerLoad
from traincope.analysis.efficiency.goodput import Goodput
from traincope.analysis.efficiency.samples import Samples, gpu_samples, logged_samples, memory_samples
from traincope.analysis.efficiency.utilization import Utilization, waterfall_of
from traincope.analysis.faults.faults import Fault, FaultKind
from traincope.analysis.faults.hangs.hang import Hang, HangKind
from traincope.analysis.kernels.gpu_partition import GpuPartition
from traincope.analysis.kernels.kernels import ClassTime, Kernels
from traincope.analysis.kernels.queue_length import QueueLength
from traincope.analysis.kernels.unfused import Unfused
from traincope.analysis.ledger.coverage import (
    RecorderOverhead,
    backward_steps,
    consecutive_ranges,
    dropped_steps,
    guessed_steps,
    recorder_overhead,
)
from traincope.analysis.ledger.device_stalls import DeviceStall
from traincope.analysis.ledger.host_shortages import HostShortage, ShortageCause
from traincope.analysis.ledger.ledger import Ledger, RankLedger, mean_step_ns
from traincope.analysis.ledger.requested_windows import RequestedWindow
from traincope.analysis.ledger.sampling import MeasuredOverhead, Sampling, sampling
from traincope.analysis.memory.uses import MemoryUse
from traincope.analysis.pipeline.bubble import Bubble, StageBubble
from traincope.analysis.pipeline.gaps import Gap, Schedule, recorded_schedule, theoretical_schedule
from traincope.analysis.reliability.reliability import Reliability
from traincope.analysis.stragglers.host_usage import HostUsage
from traincope.analysis.stragglers.own_work import OwnWork, own_work
from traincope.analysis.stragglers.patterns import Pattern
from traincope.analysis.stragglers.roots import Root
from traincope.analysis.stragglers.slow_groups import SlowGroup
from traincope.analysis.stragglers.stragglers import RankWait, Straggler, Stragglers, TermExcess
from traincope.analysis.verdict.findings import Finding, FindingKind
from traincope.analysis.verdict.losses.loss_breakdown import LossKind, LossPart, Scope, loss_breakdown
from traincope.analysis.verdict.losses.term_causes import TermCauses, term_causes
from traincope.analysis.what_if.new_settings import SettingsPrediction, predict_settings
from traincope.analysis.what_if.rates import measured_rates
from traincope.analysis.what_if.settings import parse_settings
from traincope.analysis.what_if.what_if import Change, Prediction, parse_changes, what_if

__all__ = [
    "Analysis",
    "AxisOperation",
    "Basis",
    "Bubble",
    "CallSite",
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
    "Gap",
    "Goodput",
    "GpuPartition",
    "GroupWait",
    "Hang",
    "HangKind",
    "HostShortage",
    "HostUsage",
    "Judgement",
    "Kernels",
    "LayerLoad",
    "Ledger",
    "LossKind",
    "LossPart",
    "MeasuredOverhead",
    "MemoryUse",
    "MessageImbalance",
    "MessageSize",
    "OwnWork",
    "Pattern",
    "Prediction",
    "QueueLength",
    "RankCalls",
    "RankLedger",
    "RankWait",
    "RecorderOverhead",
    "Reliability",
    "RequestedWindow",
    "Root",
    "Samples",
    "Sampling",
    "Schedule",
    "Scope",
    "Segment",
    "SettingsPrediction",
    "ShortageCause",
    "SlowGroup",
    "StageBubble",
    "StepPath",
    "Straggler",
    "Stragglers",
    "TermCauses",
    "TermChange",
    "TermExcess",
    "Unfused",
    "Utilization",
    "all_calls",
    "analyze",
    "backward_steps",
    "consecutive_ranges",
    "cost",
    "diff",
    "dropped_steps",
    "gpu_samples",
    "guessed_steps",
    "logged_samples",
    "loss_breakdown",
    "mean_step_ns",
    "measured_rates",
    "memory_samples",
    "own_work",
    "parse_changes",
    "parse_settings",
    "predict_settings",
    "price_of",
    "rank_hours",
    "recorded_schedule",
    "recorder_overhead",
    "sampling",
    "term_causes",
    "theoretical_schedule",
    "waterfall_of",
    "what_if",
    "without_places",
]
