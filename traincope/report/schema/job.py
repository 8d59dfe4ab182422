"""What is said of the run as a whole: its end, what went wrong, what was recorded."""

from typing import TypedDict


class Run(TypedDict):
    id: str
    imported: bool
    """Made of kernel traces alone."""
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
    estimated_gain_rank_hours: float | None
    """The same of all ranks and counted steps."""
    estimated_gain_money: float | None
    """In the price's currency; null without a price."""


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
    lost: dict[str, int | None]
    """What else was lost, by the recorders' own counters (`traincope.report.lost`); null: no rank told it."""
    dropped_steps: list[list[int]]
    """[first, last] of steps that some rank lost between others that it has; they are left out of every sum."""
    unwatched_steps: list[list[int]]
    """[first, last] of steps in which some rank recorded no collectives, for its level was lowered; likewise."""
    overhead_seconds: float | None
    """What the recorder itself spent in the complete steps, of all ranks together; null: not measured."""
    overhead_seconds_per_step: float | None
    """Mean of one rank's step."""
    overhead_ratio: float | None
    """Share of the steps' wall time."""
    probes: list[Probe]
    problems: list[str]
    """What could not be read, one sentence each."""
