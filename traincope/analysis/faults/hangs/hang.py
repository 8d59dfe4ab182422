"""Result of the hang analysis: one stop of progress, or one collective on which ranks disagree."""

from dataclasses import dataclass
from enum import StrEnum

from traincope.analysis.faults.faults import FaultKind
from traincope.store.job.hang_notices import StopState


class HangKind(StrEnum):
    """Kind of a hang; the value is its name in JSON."""

    STUCK = "stuck"
    """The culprits wait in no collective, and the others wait for them."""
    BUSY = "busy"
    """The culprits went on with work of their own until the time-out of the others, which waited for them."""
    LEFT = "left"
    """The culprits ended their run, and the others wait for them."""
    MISMATCH = "mismatch"
    """Members of a group disagree on their n-th collective."""
    DEADLOCK = "deadlock"
    """The culprits wait for each other, in different collectives."""
    NONE_COMPLETES = "none_completes"
    """All members joined a collective, and it does not complete. No rank is the culprit."""
    LOST_HOST = "lost_host"
    """The ranks that did not join are on a host that stopped answering. None of them is accused."""
    UNKNOWN = "unknown"
    """The evidence does not show the culprit."""


class Differs(StrEnum):
    """Deviation of a rank from the others in a mismatch."""

    OPERATION = "operation"
    SIZE = "size"
    ROOT = "root"
    """The rank that sends, or that gets the result."""
    ORDER = "order"
    TAG = "tag"
    """Of messages between two ranks."""
    GROUPS = "groups"
    """Process groups that were not made, or were made alone."""


FAULT_KINDS = {HangKind.MISMATCH: FaultKind.MISMATCH, HangKind.LOST_HOST: FaultKind.LOST_HOST}
"""Kind of a hang -> kind of its entry in the stream of faults, if its state does not decide that."""


def fault_kind(kind: str, state: str) -> FaultKind:
    """Kind of the entry in the stream of faults."""
    return FAULT_KINDS.get(HangKind(kind), FaultKind.HANG if state == StopState.HANG else FaultKind.STALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """One stop, also one that is over, or one mismatch. Times are ns of the common axis."""

    kind: HangKind
    state: StopState = StopState.HANG
    """`stall`: it may end by itself; `hang`: it does not; `over`: it did."""
    cannot_go_on: str | None = None
    """Evidence that it does not end by itself; None without."""
    culprits: tuple[int, ...] = ()
    """Ranks that caused it; empty if the evidence does not show them."""
    suspects: tuple[int, ...] = ()
    """Ranks among which the culprits are, if these are not known; the ranks of a lost host."""
    host: str | None = None
    """Name of the culprits' host, or of the lost host; None if they are on several, or unknown."""
    common_place: str | None = None
    """Host, NVLink domain, rack or rail of all members on which a collective that all joined stands still; None if it
    is unknown, and for other kinds.
    """
    victims: tuple[int, ...] = ()
    """Ranks that waited for the culprits, directly or through others."""
    group: str | None = None
    """Key of the group in which the victims waited."""
    axis: str | None = None
    """Mesh axis of this group."""
    collective: str | None = None
    """Operation in which the victims waited."""
    step: int | None = None
    call_site: str | None = None
    """Line of the training at which the first culprit stood, e.g. "train.py:41"."""
    stack: tuple[str, ...] = ()
    """Frames of the first culprit, the innermost first; empty if no signal wrote them."""
    differs: Differs | None = None
    """Deviation of the culprits in a mismatch; None if it is not known."""
    doing: str | None = None
    """Activity of the first culprit instead of joining."""
    since_ns: int
    """Wall clock, ns since the epoch."""
    until_ns: int | None
    """Latest instant at which it was certainly going on; None: the run went on."""
    noticed_ns: int | None = None
    """First look of the node's agent at it."""
    confidence: str
    evidence: str

    @property
    def fault_kind(self) -> FaultKind:
        return fault_kind(self.kind, self.state)

    @property
    def fault_ranks(self) -> tuple[int, ...]:
        """The ranks that its entry in the stream of faults names: the culprits, or those of the lost host."""
        return self.suspects if self.kind is HangKind.LOST_HOST else self.culprits

    @property
    def stopped(self) -> bool:
        """True if the ranks made no progress any more."""
        return self.until_ns is not None and self.state is not StopState.OVER

    @property
    def detected_after_seconds(self) -> float | None:
        """Time until the node's agent noticed it; None if it did not."""
        return None if self.noticed_ns is None else (self.noticed_ns - self.since_ns) / 1e9

    @property
    def lasted_ns(self) -> int | None:
        """Time for which it certainly went on; None: the run continued."""
        return None if self.until_ns is None else self.until_ns - self.since_ns
