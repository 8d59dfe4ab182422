"""What one pass of the agent found, and who is shown it."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from traincope.analysis import Analysis
from traincope.analysis.faults import Fault
from traincope.store.cards import RankInfo, RunInfo
from traincope.store.rows import Row


class RankState(StrEnum):
    ALIVE = "alive"
    ENDED = "ended"
    """Its run was left, cleanly or by an exception."""
    GONE = "gone"
    """Its process is there no more, and wrote no end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStatus:
    """One rank of the node, as it was when the pass read its records."""

    rank: int
    info: RankInfo
    state: RankState
    began_wall_ns: int | None = None
    """When its first record began, wall time; None: there is none yet."""
    last_record_ns: int
    """On the host's monotonic clock, as `time.monotonic_ns()` gives it."""
    last_record_wall_ns: int
    """The same as wall time, by the clocks as they were when the rank began: as all times of its timeline."""
    num_records: int
    """Since the attempt began, as far as they were seen."""
    num_dropped: int

    @property
    def over(self) -> bool:
        """Whether it will write nothing more."""
        return self.state is not RankState.ALIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What happened since the window before."""

    run: Path
    attempt: int
    info: RunInfo
    at_ns: int
    """When the records were read, by `time.monotonic_ns()`."""
    since_ns: int
    until_ns: int
    """What lies outside of steps is this window's where it began after `since_ns` and not after `until_ns`, on the
    timeline's axis."""
    ranks: tuple[RankStatus, ...]
    rows: tuple[Row, ...]
    """Each step of each rank once in all windows of an attempt, also over an agent that was killed and begun anew."""
    warm_up: int | None
    """The step that enters no sum; None: there is none yet."""
    analysis: Analysis | None
    """Of the new steps: they, without the one that warms up, are what its ledger counts. What is said of the whole
    job (goodput, verdict) means nothing in it. None: nothing new."""
    faults: tuple[Fault, ...]
    """Each once; marks are among them."""
    earlier: tuple[Fault, ...]
    """In the first window what an agent before this one has told, without slow steps and ends of ranks."""
    last: bool
    """The agent ends after it."""


class Observer(Protocol):
    """Who is shown every window, in order, on the agent's main thread."""

    def observed(self, window: Window) -> None: ...

    def close(self) -> None:
        """The agent ends."""
