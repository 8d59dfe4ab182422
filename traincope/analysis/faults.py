"""What the stream of faults is made of: what happened to a run, and the marks one reads it by."""

from dataclasses import dataclass
from enum import StrEnum

from traincope.analysis.findings import MEDIUM
from traincope.timeline import OpenRecord


class FaultKind(StrEnum):
    """What happened; the value is what JSON says."""

    EXCEPTION = "exception"
    """A rank left its run by one."""
    OUT_OF_MEMORY = "out_of_memory"
    """By one that says so."""
    SIGNAL = "signal"
    """One came that ended the rank, and left its stacks."""
    KILLED = "killed"
    """A rank ended without a word."""
    EXIT = "exit"
    """A process ended by itself, with a code that is not 0 and no exception that was seen."""
    NO_END = "no_end"
    """No end was recorded, and nothing says that there was one: it may be running, or hang."""
    STOPPED = "stopped"
    """The launcher was told to stop."""
    NOT_FINITE = "not_finite"
    """A logged value is NaN or infinite."""
    SPIKE = "spike"
    """Of a logged value."""
    SKIPPED_STEP = "skipped_step"
    SLOW_STEP = "slow_step"
    RESTART = "restart"
    CHECKPOINT_FAILED = "checkpoint_failed"
    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"
    THROTTLED = "throttled"
    """A GPU's clocks were slowed by heat, or by its power supply."""
    POWER_CAPPED = "power_capped"
    """A GPU was held at its power limit, as under full load it often is."""
    ECC_ERROR = "ecc_error"
    """Uncorrectable."""
    ECC_CORRECTED = "ecc_corrected"
    ROWS_REMAPPED = "rows_remapped"
    """Bad rows of a GPU's memory."""
    XID = "xid"
    """An error of the GPU, by NVIDIA's number."""
    GPU_LOST = "gpu_lost"
    RECORDER_LEVEL = "recorder_level"
    EVENT = "event"
    """`traincope.event()`."""


MARKS = frozenset(
    {
        FaultKind.CHECKPOINT,
        FaultKind.EVALUATION,
        FaultKind.POWER_CAPPED,
        FaultKind.ECC_CORRECTED,
        FaultKind.RECORDER_LEVEL,
        FaultKind.EVENT,
    }
)
"""What is no fault, and stands in the stream because faults are read beside it."""
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
"""How a rank's run ended, or did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that happened, at an instant of the common axis."""

    kind: FaultKind
    at_ns: int
    """When it began; of an end whose instant nobody wrote down, the earliest that it can have been."""
    ranks: tuple[int, ...] = ()
    """Empty: the job as a whole."""
    step: int | None = None
    what: str
    """A phrase, e.g. "ValueError at model.py:41"."""
    evidence: str = ""
    confidence: str = MEDIUM
    lasted_ns: int | None = None
    """Of what has a length."""
    follows: bool = False
    """An end that came after another rank's, and perhaps only because of it."""
    open_records: tuple[OpenRecord, ...] = ()
    """What an ended rank was in, outermost first."""

    @property
    def is_mark(self) -> bool:
        return self.kind in MARKS

    @property
    def is_fault(self) -> bool:
        """Whether it says that something went wrong."""
        return not self.is_mark and self.kind != FaultKind.NO_END
