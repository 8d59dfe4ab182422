"""Types of the counted steps: sums over steps and ranks."""

from typing import Annotated, TypedDict

from traincope.report.schema.convert import result

Terms = dict[str, int | None]
"""Ledger term -> ns, in ledger order; null if nothing measures the term."""


class RankLedger(TypedDict):
    rank: int
    steps: Annotated[int, result.num_counted]
    wall_ns: Annotated[int, result.total_wall_ns]
    terms: Terms


class AmbiguousWait(TypedDict):
    axis: str
    reason: str
    """One of `traincope.analysis.attribution.stalls.AmbiguousWait`."""
    ns: int


class Loss(TypedDict):
    kind: str
    """One of `traincope.analysis.LossKind`."""
    subject: str
    """Class of kernels, axes, stage or rank of the loss; empty: the kind has only one loss."""
    scope: str
    """Time that contains the loss: steps (counted steps), traces (kernel traces), job (all attempts)."""
    ns: int
    """Sum over all ranks; negative for a gain."""
    rank_hours: float
    money: float | None


class Cause(TypedDict):
    kind: str
    """One of `traincope.analysis.LossKind`."""
    subject: str
    """Axes, stage, rank, phase or reason; empty: the kind has only one slice."""
    ns: int
    """Sum over ranks; negative only for parts of the bubble's jitter."""
    ratio: float | None
    """Share of the terms' time; null if this is 0."""
    basis: str
    """`measured`, `proportion` (an estimate), `at_peak` (a lower bound), `at_most` (an upper bound) or `rest`."""


class TermCauses(TypedDict):
    """Slices of a term, or of the sum of several. They do not overlap, and their sum never exceeds the terms."""

    scope: str
    """`steps`: terms of the ledger. `job`: parts of goodput."""
    terms: list[str]
    ns: int
    """Time of the terms: over ranks and counted steps, or of one rank's job."""
    causes: list[Cause]
    rest_ns: int
    """Time that no cause explains."""


class Cost(TypedDict):
    wall_rank_hours: Annotated[float, result.wall_hours]
    rank_hours: Annotated[dict[str, float | None], result.hours]
    """Ledger term -> rank-hours."""
    price_per_gpu_hour: float | None
    currency: str | None
    """Currency of the price and of all money in the ledger and the verdict, as USD; null without a price."""
    wall_money: float | None
    money: dict[str, float | None] | None
    """Ledger term -> cost; null without a price. A rank has one GPU."""
    losses: list[Loss]
    """Losses by cause, the largest first. They overlap with each other and with terms, so they do not add up."""


class DeviceStall(TypedDict):
    axis: str
    count: int
    total_ns: int
    ratio: float
    """Share of the wall time of the counted steps."""


class RunAhead(TypedDict):
    """How long before a GPU reaches the begin of a step or phase its host has queued it."""

    median_ns: int
    """Near 0, the host limits the GPU."""
    empty_ratio: float
    """Share of step time in computing phases after which the GPU had nothing to do."""


class Ledger(TypedDict):
    """All but `timed_steps` is of the counted steps, which have detail. Costs are scaled to all steps."""

    clock: str
    """`host`, or `device`: the clock that measured the terms."""
    ranks: list[RankLedger]
    wall_ns: int
    terms: Terms
    rank_steps: int
    """Number of steps of single ranks in the sums."""
    timed_steps: int
    """Number of steps of the rank with most, with those without detail."""
    ambiguous_waits_ns: int
    """Part of exposed_transfer from which wait could not be separated."""
    ambiguous_waits: list[AmbiguousWait]
    """The same by axis and reason."""
    waterfall: dict[str, float | None]
    """Term -> share of the wall time; the shares that are not null sum to 1."""
    evaluation_ns: int
    """Evaluation of all ranks in the whole run; in no term and no wall time."""
    evaluation_ratio: float
    """Evaluation as a share of the recorded time."""
    device_stalls: list[DeviceStall] | None
    """Stalls of the GPUs' compute streams for communication, the longest first. The terms are measured on the host,
    which queues work ahead of the GPUs. null: no computation on a GPU, or the GPUs' clocks measured the terms.
    """
    host_hidden_wait: dict[str, int] | None
    """Term -> ns that the host waited while its GPU worked; in no term. null: the host's clock measured the terms."""
    host_clock_reason: str | None
    """Why the hosts measured the terms of a training on GPUs. null: they did not, or no computation on a GPU."""
    run_ahead: RunAhead | None
    """How far the hosts queue work ahead. null: no marks on the GPUs' compute streams measured the terms."""
    cost: Cost


class ExpertLayer(TypedDict):
    layer: int
    tokens: list[float]
    """Rows per step and expert, over all ranks, without padding."""
    hottest: int
    hottest_ratio: Annotated[float, result.ratio]
    """Rows of the hottest expert / mean."""


class Experts(TypedDict):
    layers: list[ExpertLayer]
    dropped_ratio: float
    """Share of the tokens' choices for which an expert had no capacity."""
    padding_ratio: float
    """Share of padding in the rows that experts multiplied."""


class Utilization(TypedDict):
    mfu: Annotated[float | None, result.ratios.mfu]
    mfu_paper: Annotated[float | None, result.ratios.mfu_paper]
    mfu_job: Annotated[float | None, result.ratios.mfu_job]
    """MFU of productive steps over the elapsed time of all attempts."""
    mfu_job_reason: Annotated[str | None, result.job_reason]
    """Reason for a null in mfu_job."""
    hfu: Annotated[float | None, result.ratios.hfu]
    tokens_per_second: float | None
    flops_convention: Annotated[str | None, result.work.convention]
    reason: str | None
    """Reason for a null in mfu."""
    model_flops_per_step: Annotated[float | None, result.work.model]
    """Model FLOPs of the whole job."""
    executed_flops_per_step: Annotated[float | None, result.work.executed]
    recomputed_flops_per_step: Annotated[float | None, result.work.recomputed]
    redundant_flops_per_step: Annotated[float | None, result.work.redundant]
    """Executed FLOPs beyond model and recomputation: scores that fused attention repeats in its backward.

    If the training declared its model FLOPs, or their rates per token, also padding and products that several ranks
    repeat; otherwise the FLOPs that it logs as redundant.
    """
    coverage_ratio: Annotated[float | None, result.work.coverage_ratio]
    """Counted FLOPs as a share of those that the parameters imply; below 0.98 mfu is null."""
    ideal_ns: Annotated[dict[str, float] | None, result.ratios.ideal_ns]
    """dtype -> ns per step of its model FLOPs at peak, summed over ranks."""
    waterfall: Annotated[dict[str, float | None] | None, result.ratios.waterfall]
    """Shares of wall time: ideal (= mfu), redundant at peak, kernel_inefficiency (the rest of forward and backward),
    and the ledger's other terms; those that are not null sum to 1."""
    peak_flops: Annotated[dict[str, float] | None, result.peak.flops]
    """dtype -> FLOP/s of a rank (the first one's)."""
    peak_source: str | None
    experts: Experts | None
    """Loads of a mixture's experts, if the training logs them."""


class GpuEnergy(TypedDict):
    ranks: list[int]
    """Ranks that share the GPU."""
    joules_per_step: float
    watts: float
    """Mean power in the measured steps."""
    steps: int
    """Number of measured steps: those between the first and the last reading, without evaluation."""
    reading_ns: int
    """Median time between two readings of the counter."""


class Energy(TypedDict):
    """Energy of the job's GPUs in steps, by NVML's counter."""

    joules_per_step: float | None
    """Sum over GPUs; null if that of one GPU is unknown."""
    watts: float | None
    """Mean power, summed over GPUs."""
    kwh: float | None
    """Energy of all steps except the warm-up."""
    terms: dict[str, float | None] | None
    """Ledger term -> joules per step, in proportion of its time: an estimate. They sum to `joules_per_step`."""
    gpus: list[GpuEnergy]
    price_per_kwh: float | None
    currency: str | None
    """Currency of `price_per_kwh` and `money`, as USD; null without a price."""
    money: float | None
    """Price of `kwh`."""
    reason: str | None
    """Reason for the nulls."""


class MessageImbalance(TypedDict):
    ranks: list[int]
    """Ranks that send the most in their group."""
    ratio: float
    """Bytes of such a rank / mean of its group."""
    cost_ns: int
    """(max - mean bytes) / bandwidth, summed like `transfer_ns` and part of it."""


class Contention(TypedDict):
    axis: str
    """The other axis, with transfers on the wire at the same time."""
    count: int
    compared: int
    """Number of these transfers whose equals also had the wire alone."""
    extra_ns: int | None
    """Time of these transfers beyond the median alone, summed like `transfer_ns`; null if none was compared."""


class Operation(TypedDict):
    axis: str
    op: Annotated[str, result.operation]
    count: int
    """Counted per rank: an all-reduce of 4 ranks counts 4."""
    bytes: Annotated[int | None, result.num_bytes]
    """null: a table of operations contains no sizes."""
    transfer_ns: int
    wait_ns: int | None
    """null: no stall of it can be split into wait and transfer."""
    exposed_ns: int
    bus_bandwidth_bytes_per_second: Annotated[float | None, result.bus_bandwidth]
    message_imbalance: MessageImbalance | None
    """Only for an all-to-all in which some ranks send more than others."""
    contention: list[Contention]


class Stage(TypedDict):
    stage: int
    others: list[int]
    """Other stages on the same ranks, which idle together with it."""
    ranks: list[int]
    schedule_ns: int
    imbalance_ns: int
    jitter_ns: int
    wall_ns: int
    fraction_ratio: float


class ActionTime(TypedDict):
    kind: Annotated[str, result.action.kind]
    """F and B, or F, I and W if backward is split."""
    stage: Annotated[int, result.action.stage]
    microbatch: Annotated[int, result.action.microbatch]
    start_ns: Annotated[int, result.start]
    """Time since the start of the step."""
    end_ns: Annotated[int, result.end]


class TimetableRow(TypedDict):
    rank: int
    actions: list[ActionTime]


class Bubble(TypedDict):
    schedule: str
    microbatches: Annotated[int, result.num_microbatches]
    stages_per_rank: Annotated[int, result.chunks]
    stages: list[Stage]
    fraction_ratio: float
    theory_ratio: float | None
    """Idle share of total time by the schedule's formula, for equal stages and free transfers."""
    replay_ratio: float | None
    """The same from a replay of the recorded order."""
    timetable_step: Annotated[int | None, result.step]
    """The step of median length."""
    timetable: list[TimetableRow] | None
    """Actions of one replica in that step; null for more than 16 ranks or 256 actions per rank, or without a common
    clock."""


class RankWait(TypedDict):
    rank: int
    compute_ns: int
    own_wait_ns: int
    straggler_wait_ns: int
    """Estimates for all steps; null if all steps have detail."""


class StragglerTerm(TypedDict):
    """A term in which a straggler's work exceeds its peers', per late step."""

    term: str
    own_ns: float
    peers_ns: float


class StragglerPattern(TypedDict):
    shape: str
    """`steady`, `growing`, `periodic`, or `irregular`: few steps in no order."""
    first_step: int | None
    """First late step; null if the rank is late from the beginning."""
    last_step: int | None
    """Last late step; null if it is late up to the end."""
    period_steps: int | None
    """Null unless periodic."""
    growth_ns_per_100_steps: float | None
    """Null unless it grows."""
    late_steps: int


class HostUsage(TypedDict):
    """The kernel's counts of a straggler's training thread, and the medians of its peers'. All per step."""

    core_wait_ns: float
    """Time in which it could run and had no core."""
    peers_core_wait_ns: float
    major_faults: float
    """Number of pages that it had to wait for until they were read from a disk."""
    peers_major_faults: float
    cpu_ns: float | None
    """Time in which it ran; null in older runs."""
    peers_cpu_ns: float | None


class HostShortage(TypedDict):
    """Shortage that several ranks of a host share, in the counted steps."""

    host: str
    ranks: list[int]
    """Those that lack it."""
    num_ranks: int
    """Number of the run's ranks on this host."""
    cause: str
    """`bound_cores`, `cpu_quota`, `cores`, `other_processes`, `own_threads`, `unknown` or `memory`."""
    ratio: float
    """Share of the time in which a training thread waits for a core, or for pages from a disk: mean over the ranks."""
    wait_per_cpu: float | None
    """Wait for a core / CPU time of the training threads."""
    allowed: list[int]
    """Numbers of the cores that these ranks may use, together; empty if not recorded."""
    host_cores: int | None
    quota_cores: float | None
    """CPU time per time that their cgroup gets at most; null without a limit."""
    throttled_ratio: float | None
    """Share of the time in periods in which the quota was used up."""
    ranks_cores: float | None
    """Cores that all ranks of the host keep busy, without their child processes."""
    others_cores: float | None
    """Cores that other processes of the host keep busy, DataLoader workers among them."""
    workers_cores: float | None
    """Cores that the workers of the ranks' DataLoaders keep busy; null without workers."""
    pages_per_second: float | None
    """Pages that a training thread waits for until they are read from a disk; null unless memory is short."""


class Straggler(TypedDict):
    rank: int
    confidence: str
    caused_ratio: Annotated[float, result.caused_share]
    """Share of step time lost by a rank that waited for it."""
    excess_ratio: float
    """The rank's own work / median of its peers' work - 1."""
    late_ns: float
    """Mean per step by which its work exceeds its peers', at most what they waited longer than it did."""
    gain_ratio: float
    """Share of step time that is saved if all named ranks are as fast as their peers."""
    cause: str
    """The term in which its work exceeds its peers' most."""
    terms: list[StragglerTerm]
    """The largest excess first."""
    pattern: StragglerPattern
    usage: HostUsage | None
    """Null if the kernel's counts were not recorded."""


class StragglerGroup(TypedDict):
    kind: str
    """`host`, `rack` or `rail`."""
    name: str
    """Name of the host or rack; the local rank of a rail."""
    ranks: list[int]
    """The stragglers of the group."""
    size: int


class Stragglers(TypedDict):
    named: list[Straggler]
    """Ranks that are named as stragglers, the latest first; empty if no rank is late step after step."""
    groups: list[StragglerGroup]
    """Hosts, racks and rails whose ranks are nearly all named."""
    steps: int
    """Steps that could be compared."""
    steps_needed: int
    """Fewest such steps after which a rank can be named; 0 if no rank has a peer."""
    ranks: list[RankWait]


class SlowCode(TypedDict):
    """A line of code in which a rank spends more time than each of its peers. Times are per step."""

    rank: int
    site: Annotated[str, result.line.site]
    function: Annotated[str, result.line.function]
    called: Annotated[str, result.line.called]
    """Function that the line had called; empty if unknown."""
    module: Annotated[str, result.line.module]
    """Module of the model around the line; empty outside of modules."""
    term: Annotated[str, result.line.term]
    ns: int
    peers_ns: int
    """The largest such time of a peer."""


class SampledWindow(TypedDict):
    first_step: int
    last_step: int
    steps: int
    """Steps with detail on all of its ranks."""
    ranks: list[int]
    """Ranks that sampled their stacks."""
    slow: list[SlowCode]
