"""The one object that `report --format json` prints, as types; the text report shows the same object.

Top-level keys are fixed and always present; null means that there is no evidence, never 0. Times
are integer nanoseconds (`_ns`), ratios are floats where 1 is the whole (`_ratio`), sums are over
the ranks and the counted steps, i.e. without `run.excluded_steps`.
"""

from typing import TypedDict

SCHEMA_VERSION = 1

Terms = dict[str, int | None]
"""Ledger term -> ns, in ledger order; null where the source cannot see the term."""


class Run(TypedDict):
    id: str
    world_size: int
    mesh_axes: dict[str, int]
    attempts: int
    steps: int
    """Complete steps that were counted."""
    excluded_steps: list[int]
    guessed_steps: int
    """Those whose borders were found from what the training did, not told by `run.step()`."""
    step_ns: int | None
    """Median wall time of a step without evaluation, over ranks and steps."""
    start: int
    """Wall clock, ns since the epoch."""
    end: int | None
    versions: dict[str, str]
    missing_ranks: list[int]


class Finding(TypedDict):
    kind: str
    """One of `traincope.analysis.FindingKind`."""
    ranks: list[int]
    """Empty: all of them."""
    steps: list[int]
    """Empty: all of them."""
    confidence: str
    evidence: str
    advice: str
    estimated_gain_ratio: float | None
    """Share of step time that the advice would save."""


class RankLedger(TypedDict):
    rank: int
    steps: int
    wall_ns: int
    terms: Terms


class Ledger(TypedDict):
    ranks: list[RankLedger]
    wall_ns: int
    terms: Terms
    rank_steps: int
    """How many steps of single ranks the sums hold."""
    unsplit_ns: int
    """Part of exposed_transfer whose wait could not be told apart: records of peers are missing."""
    waterfall: dict[str, float | None]
    """Term -> share of wall time; the shares that are not null sum to 1."""
    evaluation_ns: int
    """Of all ranks in the whole run; in no term and no wall time."""
    evaluation_ratio: float
    """Its share of the time that was recorded."""


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
    training told its model FLOPs also products that several ranks repeat; and padding that it logs."""
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


class OpenRecord(TypedDict):
    what: str
    axis: str | None
    step: int | None
    duration_ns: int
    """From its start to the last instant seen of its rank."""


class Fault(TypedDict):
    kind: str
    """One of `traincope.analysis.FaultKind`."""
    mark: bool
    """No fault, but what faults are read beside: a checkpoint, an evaluation, an event."""
    at_ns: int
    """Wall clock, ns since the epoch. Of an end whose instant nobody wrote down, the earliest it can have been."""
    ranks: list[int]
    """Empty: the job as a whole."""
    step: int | None
    what: str
    evidence: str
    confidence: str
    lasted_ns: int | None
    follows: bool
    """An end that came after another rank's, and perhaps only because of it."""
    open_records: list[OpenRecord]
    """What a rank was in when its records end, outermost first."""


class Attempt(TypedDict):
    attempt: int
    began: int
    """Wall clock, ns since the epoch, as the next two."""
    first_step: int | None
    last: int
    steps: int
    clean: bool


class Goodput(TypedDict):
    attempts: list[Attempt]
    elapsed_ns: int
    """Of the job: the sum of productive, lost, startup, restart, checkpoint_stall, evaluation and other."""
    steps_done: int
    steps_ns: int
    """What they took: productive and lost."""
    steps_lost: int | None
    """Made after the last checkpoint before a restart; null: not known where it went on."""
    lost_ns: int | None
    reason: str | None
    """Why steps_lost is null."""
    startup_ns: int
    restart_ns: int
    checkpoint_stall_ns: int
    evaluation_ns: int
    other_ns: int
    """Between steps, and in those that were not completed."""
    productive_ns: int | None
    productive_ratio: float | None


class MemoryUse(TypedDict):
    rank: int
    measure: str
    last_bytes: int
    peak_bytes: int
    phases: dict[str, int]
    """Phase -> median bytes when it ended."""
    growth_bytes_per_step: float | None
    leak: bool


class RankClock(TypedDict):
    rank: int
    offset_ns: int
    """Time in this document = the rank's monotonic clock + this, when its host's records begin."""
    bound_ns: int | None
    """Largest error of the rank's times, all through the run, against the first rank's; null: nothing bounds it."""
    drift_ppm: float | None
    """By how much time in this document runs faster than the rank's clock."""
    source: str
    """One of `traincope.timeline.ClockSource`."""


class Probe(TypedDict):
    name: str
    state: str
    """`on`, or why it is not."""
    ranks: list[int]


class Recorder(TypedDict):
    events: int
    dropped: int
    dropped_steps: list[list[int]]
    """[first, last] of steps that some rank lost between others that it has."""
    overhead_seconds: float | None
    """What the recorder itself spent in the complete steps, of all ranks together; null: not measured."""
    overhead_seconds_per_step: float | None
    """Mean of one rank's step."""
    overhead_ratio: float | None
    """Share of the steps' wall time."""
    probes: list[Probe]
    problems: list[str]
    """What could not be read, one sentence each."""


class Document(TypedDict):
    schema_version: int
    run: Run
    verdict: list[Finding]
    ledger: Ledger | None
    utilization: Utilization
    comm: list[Operation] | None
    bubble: Bubble | None
    stragglers: Stragglers | None
    faults: list[Fault]
    goodput: Goodput | None
    memory: list[MemoryUse] | None
    """One entry a rank and measure."""
    kernels: None
    critical_path: None
    data_order: None
    gpu_partition: None
    clock: list[RankClock]
    recorder: Recorder
