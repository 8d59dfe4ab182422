"""Faults and marks: the entries of the fault stream."""

from dataclasses import dataclass
from enum import StrEnum

from traincope.analysis.confidence import MEDIUM
from traincope.analysis.faults.exceptions import Raised
from traincope.timeline import OpenRecord


class FaultKind(StrEnum):
    """Kind of an entry; the value is its name in JSON."""

    EXCEPTION = "exception"
    """An exception left a rank's run."""
    OUT_OF_MEMORY = "out_of_memory"
    """An exception that means out of memory left a rank's run."""
    SIGNAL = "signal"
    """A signal ended the rank and left its stacks."""
    KILLED = "killed"
    """A rank ended without writing anything: by the launcher's note, or because its process no longer exists."""
    EXIT = "exit"
    """A process ended by itself, with a nonzero code and no recorded exception."""
    NO_END = "no_end"
    """No end is recorded, and no evidence of one: the rank may run, wait or hang."""
    STALL = "stall"
    """The ranks made no progress for a while, and may go on or went on by themselves."""
    HANG = "hang"
    """The ranks made no progress any more."""
    MISMATCH = "mismatch"
    """Ranks issued different collectives at the same count of a group."""
    LOST_HOST = "lost_host"
    """A host stopped answering, by the agent of another host."""
    STOPPED = "stopped"
    """The launcher was stopped."""
    NOT_FINITE = "not_finite"
    """A logged value is NaN or infinite."""
    SPIKE = "spike"
    """A logged value jumps far above the values before it."""
    SKIPPED_STEP = "skipped_step"
    ROLLBACK = "rollback"
    """A training went back to an earlier state without a restart."""
    SLOW_STEP = "slow_step"
    STEP_TIME_CHANGE = "step_time_change"
    """Steps of a running job became longer for good. A finding of the report names it after the end."""
    MEMORY_GROWTH = "memory_growth"
    """Memory of ranks of a running job grows steadily. A finding of the report names them after the end."""
    RESTART = "restart"
    DATA_FED_AGAIN = "data_fed_again"
    """A training continued with batches that its state had had."""
    DATA_SKIPPED = "data_skipped"
    """A training continued without batches that its state had not had."""
    CORRUPTED_STATE = "corrupted_state"
    """A parameter, or the optimizer's state for it, went bad in the memory of a rank."""
    REPLICAS_DIFFER = "replicas_differ"
    """Replicas of the training's state differ, but not as bad memory makes them differ."""
    CHECKPOINT_FAILED = "checkpoint_failed"
    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"
    THROTTLED = "throttled"
    """Heat or the power supply slowed a GPU's clocks."""
    POWER_CAPPED = "power_capped"
    """A GPU was held at its power limit, which is common under full load."""
    ECC_ERROR = "ecc_error"
    """Uncorrectable ECC errors."""
    ECC_CORRECTED = "ecc_corrected"
    ROWS_REMAPPED = "rows_remapped"
    """Bad rows of a GPU's memory were remapped."""
    XID = "xid"
    """An error of the GPU, by NVIDIA's number."""
    GPU_LOST = "gpu_lost"
    LINK_ERRORS = "link_errors"
    """Errors of a port, a slot, or a GPU's NVLinks, more than sound ones have."""
    LINK_DOWN = "link_down"
    """A port of a host lost its link."""
    LINK_SLOW = "link_slow"
    """A port or slot is slower than before, than those of other hosts, or than it can be."""
    KERNEL_ERROR = "kernel_error"
    """The kernel of a host logged an error of its hardware, or that it had no memory."""
    RECORDER_LEVEL = "recorder_level"
    REQUESTED_WINDOW = "requested_window"
    """Ranks began to record steps in detail because a person or an anomaly requested them."""
    EVENT = "event"
    """`traincope.event()`."""
    INTERRUPTION = "interruption"
    """An interruption of a logbook."""
    NOTE = "note"
    """A note of a logbook."""


MARKS = frozenset(
    {
        FaultKind.CHECKPOINT,
        FaultKind.EVALUATION,
        FaultKind.POWER_CAPPED,
        FaultKind.ECC_CORRECTED,
        FaultKind.RECORDER_LEVEL,
        FaultKind.REQUESTED_WINDOW,
        FaultKind.EVENT,
        FaultKind.NOTE,
    }
)
"""Marks are not faults. They are in the stream as context for the faults."""
OF_HARDWARE = frozenset(
    {
        FaultKind.THROTTLED,
        FaultKind.POWER_CAPPED,
        FaultKind.ECC_ERROR,
        FaultKind.ECC_CORRECTED,
        FaultKind.ROWS_REMAPPED,
        FaultKind.XID,
        FaultKind.GPU_LOST,
    }
)
"""Kinds that the driver of a GPU reports."""
OF_LINKS = frozenset({FaultKind.LINK_ERRORS, FaultKind.LINK_DOWN, FaultKind.LINK_SLOW})
"""Kinds that may make communication slow."""
ENDS = frozenset(
    {
        FaultKind.EXCEPTION,
        FaultKind.OUT_OF_MEMORY,
        FaultKind.SIGNAL,
        FaultKind.KILLED,
        FaultKind.EXIT,
        FaultKind.NO_END,
    }
)
"""Kinds that describe the end of a rank's run, or the lack of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault or mark, at an instant of the common time axis."""

    kind: FaultKind
    at_ns: int
    """Begin, ns. For an end without a recorded time, the earliest that it can have been."""
    ranks: tuple[int, ...] = ()
    """Empty: the job as a whole."""
    step: int | None = None
    """Number in the records of its attempt."""
    attempt: int | None = None
    """None: not known to be of a whole job."""
    timed: bool = True
    """False: its time is unknown, and `at_ns` is that of the entry before."""
    training_step: int | None = None
    """The training's own number of the step, over all attempts. None: unknown, or the job has one attempt only, whose
    numbers are the training's.
    """
    what: str
    """A phrase, e.g. "ValueError: bad sample at model.py:41"."""
    evidence: str = ""
    confidence: str = MEDIUM
    lasted_ns: int | None = None
    """Duration of entries that have one. A checkpoint or an evaluation of several ranks lasts as long as that of the
    rank that it stopped longest: their begins may lie apart.
    """
    end_ns: int | None = None
    """The last end on any rank; None: `lasted_ns` after the begin."""
    follows: bool = False
    """An end that came after another rank's, perhaps only because of it."""
    of_communication: bool = False
    """An exception of the communication itself. Mostly another rank is its cause."""
    open_records: tuple[OpenRecord, ...] = ()
    """Intervals that an ended rank was in, outermost first."""
    raised: str = ""
    """Type of the exception that left the run, or that a `sys.exit` handled; empty without one."""
    message: str = ""
    """Message of that exception."""
    site: str = ""
    """The training's innermost line at which it was raised."""
    handler: str = ""
    """Signal whose handler raised it; empty without one."""
    hidden_at: str | None = None
    """The training's line at which the communication failed while it was being handled, and took its place; None
    without one.
    """
    traceback: tuple[str, ...] = ()
    """File, line and function of an exception's frames, innermost last."""
    failures: tuple[tuple[int, Raised], ...] = ()
    """Ranks and what they raised, the first ones, if torch raised the exception on all ranks because of these."""
    num_failed: int = 0
    """Number of all these ranks."""

    @property
    def until_ns(self) -> int:
        return self.at_ns + (self.lasted_ns or 0) if self.end_ns is None else self.end_ns

    @property
    def is_mark(self) -> bool:
        return self.kind in MARKS

    @property
    def is_fault(self) -> bool:
        """True if something went wrong."""
        return not self.is_mark and self.kind != FaultKind.NO_END
