"""Types of the run as a whole: findings, faults, goodput, clocks, recorder."""

from typing import Annotated, Any, TypedDict

from traincope.analysis.ledger.sampling import Sampling


class Run(TypedDict):
    id: str
    imported: bool
    """True if the run was made from kernel traces, a table of operations or a list of interruptions only."""
    world_size: int
    mesh_axes: dict[str, int]
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
    start: int
    """Wall clock, ns since the epoch."""
    end: int | None
    versions: dict[str, str]
    missing_ranks: list[int]


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
    mark: bool
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


class Probe(TypedDict):
    name: str
    state: str
    """`on`, or the reason why it is off or absent."""
    ranks: list[int]


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
    sampling: Annotated[Any, Sampling]
    probes: list[Probe]
    problems: list[str]
    """One sentence for each thing that could not be read."""
