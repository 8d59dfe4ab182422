"""Result of the hang analysis: one stop of progress, or one collective on which ranks disagree."""

from dataclasses import dataclass
from enum import StrEnum


class HangKind(StrEnum):
    """Kind of a hang; the value is its name in JSON."""

    STUCK = "stuck"
    """The culprits wait in no collective, and the others wait for them."""
    LEFT = "left"
    """The culprits ended their run, and the others wait for them."""
    MISMATCH = "mismatch"
    """Members of a group disagree on their n-th collective."""
    DEADLOCK = "deadlock"
    """The culprits wait for each other, in different collectives."""
    NONE_COMPLETES = "none_completes"
    """All members joined a collective, and it does not complete. No rank is the culprit."""
    UNKNOWN = "unknown"
    """The evidence does not show the culprit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """One hang or mismatch. Times are ns of the common axis."""

    kind: HangKind
    culprits: tuple[int, ...] = ()
    """Ranks that caused it; empty if the evidence does not show them."""
    suspects: tuple[int, ...] = ()
    """Ranks among which the culprits are, if these are not known."""
    victims: tuple[int, ...] = ()
    """Ranks that waited for the culprits, directly or through others."""
    group: str | None = None
    """Key of the group in which the victims waited."""
    axis: str | None = None
    collective: str | None = None
    """Operation in which the victims waited."""
    step: int | None = None
    call_site: str | None = None
    """Line of the training at which the first culprit stood, e.g. "train.py:41"."""
    stack: tuple[str, ...] = ()
    """Frames of the first culprit, the innermost first; empty if no signal wrote them."""
    doing: str | None = None
    """Activity of the first culprit instead of joining."""
    since_ns: int
    until_ns: int | None
    """Latest instant at which it was certainly going on; None: the run went on."""
    noticed_ns: int | None = None
    """First look of the node's agent at it."""
    confidence: str
    evidence: str

    @property
    def stopped(self) -> bool:
        """True if the ranks made no progress any more."""
        return self.until_ns is not None

    @property
    def detected_after_seconds(self) -> float | None:
        """Time until the node's agent noticed it; None if it did not."""
        return None if self.noticed_ns is None else (self.noticed_ns - self.since_ns) / 1e9

    @property
    def lasted_ns(self) -> int | None:
        return None if self.until_ns is None else self.until_ns - self.since_ns
