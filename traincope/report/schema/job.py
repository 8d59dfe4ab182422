"""Types of the run as a whole: findings, faults, goodput, clocks, recorder."""

from typing import Annotated, TypedDict

from traincope.report.schema.convert import result


class Run(TypedDict):
    id: str
    imported: bool
    """True if the run was made from kernel traces, a table of operations or a list of interruptions only."""
    world_size: int
    mesh_axes: Annotated[dict[str, int], result.mesh]
    attempts: int
    attempt: int
    """Number of the attempt that the document describes; faults and goodput are of all attempts until it."""
    later_attempts: int
    training_step_offset: int | None
    """What to add to a number of a step here for the training's own number, up to the attempt's first rollback; null:
    unknown."""
    steps: int
    """Number of counted steps."""
    excluded_steps: list[int]
    guessed_steps: int
    """Number of steps whose boundaries were inferred from the training, without `run.step()`."""
    backward_steps: int
    """Number of steps without a certain sign of an update; unless it is 0, the number of steps is unknown."""
    step_ns: int | None
    """Median wall time of a step without evaluation, over ranks and steps."""
    mean_step_ns: float | None
    """Mean of the same steps, also of those without detail."""
    start: Annotated[int, result.started_wall_ns]
    """Wall clock, ns since the epoch."""
    end: int | None
    versions: dict[str, str]
    missing_ranks: list[int]


class Slowdown(TypedDict):
    """Cost of stragglers in a job that was imported from a table of operations (docs/tables.md)."""

    ratio: float | None
    """S: replayed over ideal step time; null if the operations cannot be replayed."""
    worker_share: float | None
    """M_W: share of the loss that the slowest 3 % of the workers explain. It can exceed 1, like all these shares."""
    last_stage_share: float | None
    """M_S: the same of the last stage."""
    sequence_length_share: float | None
    """Share of the loss that remains if workers differ only in the times of single microbatches."""
    correlation: float | None
    """Correlation of a microbatch's forward and backward times; null with too few microbatches or equal times."""
    stage_correlation: float | None
    """Correlation of a microbatch's forward times on neighbouring parts of the model."""
    excess_ratio: float | None
    """Time of the cause's computations over that of the others - 1."""
    worker: int | None
    """Rank of the slowest worker; null if the job loses almost nothing."""
    slowest: list[int]
    """The slowest 3 % of the ranks, the slowest first."""
    last_stage: list[int]
    """Ranks of the last stage."""
    cause: str
    """`worker`, `last_stage`, `sequence_length`, `none` or `unknown`."""
    reason: str | None
    """Why the cause is unknown."""
    steps: int
    step_ns: int
    """Mean step time as recorded."""
    replayed_ns: int | None
    """Mean step time of the replay without delays before operations."""
    ideal_ns: int | None
    """The same with average operations."""
    unknown_operations: int
    """Operations of unknown types; the replay leaves them out."""


class Finding(TypedDict):
    kind: str
    """One of `traincope.analysis.FindingKind`."""
    page: str
    """Its entry in docs/findings: what it means, how we know, what to do, how to check it (`traincope explain`)."""
    ranks: list[int]
    """Empty: all."""
    steps: list[int]
    """Empty: all."""
    confidence: str
    evidence: str
    advice: str
    estimated_gain_ratio: float | None
    """Share of step time that the advice would save."""
    gain_at_most: bool
    """True if the gain is an upper bound."""
    estimated_gain_rank_hours: float | None
    """The same gain in rank-hours of all ranks and counted steps."""
    estimated_gain_money: float | None
    """The same gain in money, in the currency of `ledger.cost`; null without a price."""


class OpenRecord(TypedDict):
    what: str
    axis: str | None
    step: int | None
    duration_ns: int
    """From its start to its rank's last event."""


class Fault(TypedDict):
    kind: str
    """One of `traincope.analysis.FaultKind`."""
    page: str
    """Its entry in docs/findings."""
    mark: Annotated[bool, result.is_mark]
    """True for a mark, which gives context to faults: a checkpoint, an evaluation, an event."""
    at_ns: int
    """Wall clock, ns since the epoch. For an end without a recorded time, the earliest possible time."""
    timed: bool
    """False for an entry of a logbook without a time; `at_ns` is then that of the entry before."""
    ranks: list[int]
    """Empty: the job as a whole."""
    step: int | None
    """Number in the records of its attempt."""
    attempt: int | None
    training_step: int | None
    """The training's own number of the step, over all attempts; null if it is unknown, or if the job has one attempt
    that began anew, whose numbers are the training's."""
    what: str
    evidence: str
    confidence: str
    lasted_ns: int | None
    """Duration of entries that have one; of a checkpoint or an evaluation, on the rank that it stopped longest."""
    follows: bool
    """True for an end after another rank's end, possibly caused by it."""
    open_records: list[OpenRecord]
    """Open events at the end of the rank's records, outermost first."""
    traceback: list[str]
    """File, line and function of an exception's frames, innermost last; empty for other faults."""


class Hang(TypedDict):
    kind: str
    """One of `traincope.analysis.HangKind`."""
    state: str
    """`stall`: it may end by itself; `hang`: it does not; `over`: it did."""
    cannot_go_on: str | None
    """Evidence that it does not end by itself; null without."""
    culprits: list[int]
    """Ranks that caused it; empty if the evidence does not show them."""
    suspects: list[int]
    """Ranks among which the culprits are, if these are not known; the ranks of a lost host."""
    host: str | None
    """Name of the culprits' host, or of the lost host; null if they are on several, or unknown."""
    victims: list[int]
    """Ranks that waited for the culprits, directly or through others."""
    group: str | None
    axis: str | None
    """Mesh axis of the group in which the victims waited."""
    collective: str | None
    step: int | None
    call_site: str | None
    """Line of the training at which the first culprit stood."""
    stack: list[str]
    """Frames of the first culprit, the innermost first; empty without a stack."""
    doing: str | None
    """Activity of the first culprit instead of joining."""
    since: Annotated[int, result.since_ns]
    """Wall clock, ns since the epoch."""
    lasted_ns: int | None
    """Time for which it certainly went on; null: the run continued."""
    detected_after_seconds: float | None
    """Time until the node's agent noticed it; null if it did not."""
    confidence: str
    evidence: str


class Attempt(TypedDict):
    attempt: Annotated[int, result.number]
    began: Annotated[int, result.began_ns]
    """Wall clock, ns since the epoch, like the next two."""
    first_step: Annotated[int | None, result.first_step_ns]
    last: Annotated[int, result.last_ns]
    steps: Annotated[int, result.num_steps]
    resumed_step: int | None
    """Steps of the state from which it declared that it continued."""
    rolled_back_steps: Annotated[int, result.undone_steps]
    clean: bool


class Goodput(TypedDict):
    attempts: list[Attempt]
    elapsed_ns: int
    """Elapsed time of the job: productive + skipped + rolled_back + lost + startup + restart + checkpoint_stall +
    evaluation + other."""
    steps_done: int
    steps_ns: int
    """Time of these steps: productive + skipped + rolled_back + lost."""
    steps_lost: int | None
    """Steps after the last checkpoint before a restart; null: the step at which it continued is unknown."""
    lost_ns: int | None
    reason: str | None
    """Reason for a null in steps_lost and steps_skipped."""
    steps_rolled_back: int
    """Steps that a rollback undid, the bad step included."""
    rolled_back_ns: int
    steps_skipped: int | None
    """Other steps that updated nothing."""
    skipped_ns: int | None
    startup_ns: int
    restart_ns: int
    checkpoint_stall_ns: int
    evaluation_ns: int
    other_ns: int
    """Time between steps and in incomplete steps."""
    productive_ns: int | None
    productive_ratio: float | None


class SaveCost(TypedDict):
    """Mean over background saves, ns; `low` and `high` bound it with 95 % confidence."""

    estimate: float
    low: float
    high: float


class BackgroundSaves(TypedDict):
    saves: int
    """Background saves of the last attempt whose end is recorded."""
    steps: int
    """Steps that a save touches."""
    extra_ns: SaveCost | None
    """Time that one save adds to the steps that it touches, without checkpoint stalls."""
    ratio: float | None
    """This time of all saves, relative to all usual steps without checkpoint stalls."""
    reason: str | None
    """Reason for a null in extra_ns and ratio."""


class Continuation(TypedDict):
    attempt: int
    step: int | None
    """Steps that the state had had from which the attempt continued."""
    ranks: list[int]
    """Ranks with the same answer."""
    order: str | None
    """`right`, `fed_again` or `skipped`."""
    num_batches: int | None
    """Batches of each rank that were fed again, or skipped."""
    first_step: int | None
    """First and last step, counted from 1, whose batches they are."""
    last_step: int | None
    reason: str | None
    """Reason for a null in order."""
    what: str
    """The answer as a phrase."""
    loss_before: float | None
    """Loss of the step from which it continued, if that was logged and finite."""
    loss_after: float | None
    """The first loss that the attempt logged."""


class DataOrder(TypedDict):
    continuations: list[Continuation]
    """At least one entry per attempt after the first that recorded batches."""


class StateShare(TypedDict):
    num_bytes: int
    """Summed over ranks."""
    voted_bytes: int
    """Compared with a replica on another rank."""
    voted_ratio: float | None
    held_bytes: int
    """Compared with themselves between two steps of their optimizer."""
    held_ratio: float | None


class StateChecks(TypedDict):
    """Checks of parameters and optimizer state for silent corruption. Their faults are in `faults`."""

    num_checks: int
    first_step: int
    last_step: int
    parameters: StateShare
    optimizer_state: StateShare
    check_ns: int
    """Median time of a rank's host for one check."""
    edited_checks: int
    """Checks of a rank between which the program itself wrote to tensors."""


class RankClock(TypedDict):
    rank: int
    offset_ns: int
    """Time in this document minus the rank's monotonic clock, at the start of its host's records."""
    bound_ns: int | None
    """Largest error of the rank's times against the first rank's, during the whole run; null: no bound is known."""
    drift_ppm: float | None
    """Excess rate of time in this document over the rank's clock."""
    source: str
    """One of `traincope.timeline.ClockSource`."""


class Probe(TypedDict):
    name: str
    state: str
    """`on`, or the reason why it is off or absent."""
    ranks: list[int]


class MeasuredOverhead(TypedDict):
    """Relative lengthening of a step by its detail; `low` and `high` bound it with 95 % confidence."""

    estimate: float
    low: float
    high: float


class RequestedWindow(TypedDict):
    """Steps that a person or an anomaly requested in detail."""

    first_step: int
    last_step: int
    cause: str
    """`profile`, `viewer`, or the kind of fault that opened it."""
    reason: str
    """The cause as a phrase."""
    at_step: int | None
    """Step of the anomaly; null for a person's request."""
    kernels: bool
    recorded_steps: int
    """Requested steps that all ranks recorded in detail."""
    ranks_without: list[int]
    """Ranks that made requested steps without detail, because they read the request too late or never."""


class Sampling(TypedDict):
    """Steps with detail: collectives, waits, pipeline actions."""

    steps: int
    sampled_steps: int
    first_sampled: int | None
    last_sampled: int | None
    windows: int
    """Ranges of consecutive sampled steps."""
    budget_ratio: float | None
    """Largest share of a step that the recorder may take on average; null: no limit, or unknown."""
    own_ratio: float | None
    """The recorder's own time over the steps' wall time."""
    requested: list[RequestedWindow]
    """Windows that a person or an anomaly requested; they enter no sum."""
    measured_overhead: MeasuredOverhead | None
    """Sampled steps against the light steps around them; null: too few of either."""


class Recorder(TypedDict):
    events: int
    dropped: int
    lost: dict[str, int | None]
    """Other losses by the recorders' counters (`report.document.recording_losses`); null: not reported by any rank."""
    dropped_steps: list[list[int]]
    """Ranges [first, last] of steps in which a rank dropped events; they enter no sum."""
    unwatched_steps: list[list[int]]
    """Ranges [first, last] of steps that a rank recorded without detail."""
    overhead_seconds: float | None
    """The recorder's own time in the complete steps, summed over ranks; null: not measured."""
    overhead_seconds_per_step: float | None
    """Mean per rank and step."""
    overhead_ratio: float | None
    """Share of the steps' wall time."""
    sampling: Sampling
    probes: list[Probe]
    problems: list[str]
    """One sentence for each thing that could not be read."""
