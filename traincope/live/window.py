"""Result of one look of the agent, and the observer to which it is passed."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from traincope.analysis import Analysis
from traincope.analysis.faults.faults import Fault
from traincope.store import RankRecords
from traincope.store.job.manifests import RankInfo, RunInfo
from traincope.store.side_tables.rows import Row
from traincope.timeline.collectives.elsewhere import Elsewhere


class RankState(StrEnum):
    ALIVE = "alive"
    ENDED = "ended"
    """The rank left its run, cleanly or by an exception."""
    GONE = "gone"
    """The rank's process does not run, and it recorded no end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStatus:
    """State of one rank of the node when its events were read."""

    rank: int
    info: RankInfo
    state: RankState
    began_wall_ns: int | None = None
    """Wall time of the first event's start; None before the first event."""
    last_record_ns: int
    """Time of the last event on the host's monotonic clock, as from `time.monotonic_ns()`."""
    last_record_wall_ns: int
    """The same as wall time. It uses the clocks at the rank's start, as all times of its timeline do."""
    num_records: int
    """Number of events since the attempt began, as far as the agent read them."""
    num_dropped: int

    @property
    def over(self) -> bool:
        """True if the rank will write nothing more."""
        return self.state is not RankState.ALIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedRank:
    """A rank by its witness copies: those that another host's agent sent, or this agent."""

    records: RankRecords
    """Its latest collectives and steps."""
    arrived_ns: int
    """Time of the latest copy here, by `time.monotonic_ns()`."""


class CopiedRanks(Protocol):
    """Source of all that an agent knows of ranks of other hosts."""

    def copied_ranks(self) -> tuple[CopiedRank, ...]:
        """Copied ranks, of this host and of others."""

    def elsewhere(self) -> Elsewhere | None:
        """Collectives with members on hosts without copies; None if this agent has copies of all hosts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Everything that happened since the previous window."""

    run: Path
    attempt: int
    info: RunInfo
    at_ns: int
    """Time at which the events were read, by `time.monotonic_ns()`."""
    since_ns: int
    until_ns: int
    """Bounds of the window on the timeline's axis. An interval outside of steps belongs to it if it began after
    `since_ns` and not after `until_ns`.
    """
    ranks: tuple[RankStatus, ...]
    rows: tuple[Row, ...]
    """New rows. Over all windows of an attempt each step of each rank comes once, even after a restart of the agent."""
    warm_up: int | None
    """Step that enters no sum; None before there is one."""
    analysis: Analysis | None
    """Analysis of the new steps. Its ledger counts them without the warm-up step. Its results about the whole job
    (goodput, verdict) have no meaning. None: nothing is new.
    """
    faults: tuple[Fault, ...]
    """New faults and marks, each once."""
    earlier: tuple[Fault, ...]
    """Faults that an earlier agent reported, without slow steps and ends of ranks. Only the first window has them."""
    last: bool
    """True if the agent ends after this window."""


class Observer(Protocol):
    """Receiver of every window, in order, on the agent's main thread."""

    def observe(self, window: Window) -> None: ...

    def close(self) -> None:
        """End: the agent stops."""
