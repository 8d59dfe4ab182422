"""What an analysis gets: immutable, columnar, on one time axis (ns of wall time since the epoch)."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from traincope.events import OPEN, Kind
from traincope.store import RunRecords
from traincope.timeline.clocks import RankClock
from traincope.timeline.traces import Traces
from traincope.timeline.watching import AS_USUAL
from traincope.topology import PIPELINE_AXIS, Group

TRAINING_THREAD = "main"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One complete step of one rank."""

    number: int
    start_ns: int
    end_ns: int
    guessed: bool = False
    """Its borders were found from what the training did, not told by `run.step()`."""
    own_ns: int = 0
    """What the recorder itself spent in it; 0 where that was not measured."""

    @property
    def length_ns(self) -> int:
        """From start to end; an evaluation in between is no part of its wall time."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRecord:
    """Something a rank was in when its records end."""

    what: str
    axis: str | None
    """Mesh axis, where it is a collective."""
    step: int | None
    start_ns: int
    in_thread: bool = True
    """False for a collective that was only under way, while the thread did something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimeline:
    """One rank's records, aligned."""

    rank: int
    coords: dict[str, int]
    ending: str | None
    """`clean`, the name of the exception that left the run, or None: no end was recorded."""
    names: tuple[str, ...]
    groups: tuple[Group, ...]
    threads: dict[str, NDArray[np.void]]
    """Thread -> records (store.RECORD_DTYPE) sorted by start, times on the axis, OPEN ends kept."""
    steps: tuple[Step, ...]
    """Complete steps, in order."""
    open_step: int | None
    """Number of the step that was under way when the records end."""
    open_records: tuple[OpenRecord, ...]
    """Outermost first; empty after a clean end."""
    last_ns: int
    """The last instant this rank recorded."""
    watched: str = AS_USUAL
    """How its collectives were (`watching.py`)."""

    @property
    def main(self) -> NDArray[np.void]:
        """Records of the training thread."""
        return self.threads[TRAINING_THREAD]

    @property
    def stage(self) -> int | None:
        """Position on the pipeline axis."""
        return self.coords.get(PIPELINE_AXIS)

    def of_kind(self, *kinds: Kind) -> NDArray[np.void]:
        """Records of the training thread of these kinds."""
        return self.main[np.isin(self.main["kind"], kinds)]

    def closed(self, records: NDArray[np.void]) -> NDArray[np.void]:
        """The same records, those still open ended at the last instant of the rank."""
        ended = records.copy()
        ended["end_ns"][records["end_ns"] == OPEN] = self.last_ns
        return ended

    def name(self, number: int) -> str:
        return self.names[number] if number < len(self.names) else f"<name {number}>"

    def axis(self, number: int) -> str:
        """Mesh axis of a group number of this rank."""
        return self.groups[number].axis if number < len(self.groups) else f"<group {number}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A run, on one time axis."""

    run: RunRecords
    ranks: tuple[RankTimeline, ...]
    clocks: tuple[RankClock, ...]
    traces: Traces = field(default_factory=Traces)
    """Its kernel traces; none where it was not opened from a directory."""

    @property
    def start_ns(self) -> int:
        return min(int(rank.main["start_ns"].min()) for rank in self.ranks if len(rank.main))

    @property
    def end_ns(self) -> int:
        return max(rank.last_ns for rank in self.ranks)
