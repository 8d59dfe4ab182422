"""What is said of the counted steps: sums over them and over ranks."""

from typing import TypedDict

Terms = dict[str, int | None]
"""Ledger term -> ns, in ledger order; null where the source cannot see the term."""


class RankLedger(TypedDict):
    rank: int
    steps: int
    wall_ns: int
    terms: Terms


class Unsplit(TypedDict):
    axis: str
    reason: str
    """One of `traincope.analysis.unsplit.Unsplit`."""
    ns: int


class Loss(TypedDict):
    kind: str
    """One of `traincope.analysis.LossKind`."""
    of: str
    """Which class of kernels, axes, stage or rank; empty: there is one such loss."""
    scope: str
    """In which time it lies: steps (the counted ones), traces (of kernels), job (all attempts)."""
    ns: int
    """Over all ranks; negative where it was a gain."""
    rank_hours: float
    money: float | None


class Cost(TypedDict):
    wall_rank_hours: float
    rank_hours: dict[str, float | None]
    """Ledger term -> hours of all ranks together."""
    price_per_gpu_hour: float | None
    wall_money: float | None
    money: dict[str, float | None] | None
    """Ledger term -> in the price's currency; null without a price. A rank has one GPU."""
    losses: list[Loss]
    """By cause, the largest first. They may overlap, with each other and with terms: no sum is meant."""


class DeviceStall(TypedDict):
    axis: str
    count: int
    total_ns: int
    ratio: float
    """Share of the wall time of the counted steps."""


class Ledger(TypedDict):
    ranks: list[RankLedger]
    wall_ns: int
    terms: Terms
    rank_steps: int
    """How many steps of single ranks the sums hold."""
    unsplit_ns: int
    """Part of exposed_transfer whose wait could not be told apart."""
    unsplit: list[Unsplit]
    """The same, by axis and reason."""
    waterfall: dict[str, float | None]
    """Term -> share of wall time; the shares that are not null sum to 1."""
    evaluation_ns: int
    """Of all ranks in the whole run; in no term and no wall time."""
    evaluation_ratio: float
    """Its share of the time that was recorded."""
    device_stalls: list[DeviceStall] | None
    """How long the GPUs' compute streams stood still for communication, the longest first; the terms are the host's,
    which queues work ahead of them. null: nobody computed on a GPU.
    """
    cost: Cost


class ExpertLayer(TypedDict):
    layer: int
    tokens: list[float]
    """Rows of each expert in a step, over all ranks, padding not among them."""
    hottest: int
    hottest_ratio: float
    """Its rows over the mean."""


class Experts(TypedDict):
    layers: list[ExpertLayer]
    dropped_ratio: float
    """Of the tokens' choices, those for which an expert had no room."""
    padding_ratio: float
    """Of the rows that experts multiplied, those that no token took."""


class Utilization(TypedDict):
    mfu: float | None
    mfu_paper: float | None
    mfu_job: float | None
    """Of the steps that lasted over all time that elapsed, of all attempts."""
    mfu_job_reason: str | None
    """Why that is null."""
    hfu: float | None
    tokens_per_second: float | None
    flops_convention: str | None
    reason: str | None
    """Why mfu is null."""
    model_flops_per_step: float | None
    """Of the whole job, what the mathematics needs."""
    executed_flops_per_step: float | None
    recomputed_flops_per_step: float | None
    redundant_flops_per_step: float | None
    """Executed beyond model and recomputation: scores that fused attention computes again in its backward; where the
    training told its model's FLOPs, or how they follow from its tokens, also padding and products that several ranks
    repeat; else what it logs as redundant."""
    coverage_ratio: float | None
    """Share of what the parameters imply that was counted; below 0.98 mfu is null."""
    ideal_ns: dict[str, float] | None
    """dtype -> ns that its model FLOPs take at peak, in one step, summed over ranks."""
    waterfall: dict[str, float | None] | None
    """Shares of wall time: ideal (= mfu), redundant at peak, kernel_inefficiency (the rest of forward and backward),
    and the ledger's other terms; those that are not null sum to 1."""
    peak_flops: dict[str, float] | None
    """dtype -> FLOP/s of a rank (the first one's)."""
    peak_source: str | None
    experts: Experts | None
    """What the experts of a mixture got, where the training logs it."""


class Uneven(TypedDict):
    ranks: list[int]
    """Those that send most of their group."""
    ratio: float
    """What such a rank sends over its group's mean."""
    cost_ns: int
    """(max - mean bytes) / bandwidth, summed as `transfer_ns` is and part of it."""


class Contention(TypedDict):
    axis: str
    """Another, whose transfers were on the wire at the same time."""
    count: int
    compared: int
    """Those of which the same transfer also had the wire alone."""
    extra_ns: int | None
    """What these took beyond the median of that, summed as `transfer_ns` is; null where none was compared."""


class Operation(TypedDict):
    axis: str
    op: str
    count: int
    """Each rank's part counts, so an all-reduce of 4 ranks counts 4."""
    bytes: int
    transfer_ns: int
    wait_ns: int
    exposed_ns: int
    bus_bandwidth_bytes_per_second: float | None
    uneven: Uneven | None
    """Of an all-to-all in which some ranks send more than others."""
    contention: list[Contention]


class Stage(TypedDict):
    stage: int
    others: list[int]
    """Further stages of the same ranks, idle together with it."""
    ranks: list[int]
    schedule_ns: int
    imbalance_ns: int
    jitter_ns: int
    wall_ns: int
    fraction_ratio: float


class ActionTime(TypedDict):
    kind: str
    """F, B, or where backward is split I and W."""
    stage: int
    microbatch: int
    start_ns: int
    """From the step's begin."""
    end_ns: int


class TimetableRow(TypedDict):
    rank: int
    actions: list[ActionTime]


class Bubble(TypedDict):
    schedule: str
    microbatches: int
    stages_per_rank: int
    stages: list[Stage]
    fraction_ratio: float
    theory_ratio: float | None
    """Idle share of total time by the schedule's formula, for equal stages and free transfers."""
    replay_ratio: float | None
    """The same by replaying the recorded order."""
    timetable_step: int | None
    """The step of median length."""
    timetable: list[TimetableRow] | None
    """What one replica did in it; null for more than 16 ranks or 256 actions a rank, or without a common clock."""


class RankWait(TypedDict):
    rank: int
    compute_ns: int
    own_wait_ns: int
    caused_wait_ns: int


class Straggler(TypedDict):
    rank: int
    confidence: str
    caused_ratio: float
    """Share of step time lost by a rank that waited for it."""
    excess_ratio: float
    """Its own work over the median of its peers', less 1."""


class Stragglers(TypedDict):
    named: list[Straggler]
    """Empty: nobody is to blame."""
    ranks: list[RankWait]
