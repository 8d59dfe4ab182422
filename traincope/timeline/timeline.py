"""Timeline of a run, the input of all analyses: immutable columns on one time axis (ns since the epoch)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import Bools, Ints, chosen
from traincope.events import BLOCK_STEPS, EMPTY_NS, MAX_LATENCY_NS, OPEN, Kind
from traincope.store import RunRecords
from traincope.timeline.clocks.clocks import RankClock
from traincope.timeline.collectives.elsewhere import Elsewhere
from traincope.timeline.observation import DISPATCHER
from traincope.timeline.traces import Traces
from traincope.topology import PIPELINE_AXIS, Group

TRAINING_THREAD = "main"
HOST_THREAD = "host"
"""Thread of what a host did, where the records of `TRAINING_THREAD` are those of its GPU."""
UNKNOWN_REASON = "an unknown request"
"""Reason of a step whose request is missing in the run directory."""


class LedgerClock(StrEnum):
    """The clock that measured steps, phases and stalls. The value is the spelling in JSON."""

    HOST = "host"
    """The training thread's. A host queues work ahead of its GPUs."""
    DEVICE = "device"
    """The GPU's, from kernel traces, or from marks on its compute stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One complete step of one rank."""

    number: int
    start_ns: int
    end_ns: int
    guessed: bool = False
    """The step's borders were guessed from the training's actions, without `run.step()`."""
    by_backward: bool = False
    """No certain sign of an update ended the step: its true borders are unknown (`Flag.BY_BACKWARD`)."""
    detailed: bool = False
    """The step was recorded in detail: with its collectives, waits and pipeline actions."""
    requested: bool = False
    """The step has detail only because of a request (`Flag.REQUESTED`)."""
    debugged: bool = False
    """A tool that slows down the training was on (`Flag.DEBUGGED`)."""
    own_ns: int = 0
    """The recorder's own CPU time in it; 0 if not measured."""

    @property
    def length_ns(self) -> int:
        """Time from start to end. An evaluation in between is not part of the step's wall time."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRecord:
    """An interval that a rank was in at the end of its records."""

    what: str
    axis: str | None
    """Mesh axis of a collective."""
    step: int | None
    start_ns: int
    in_thread: bool = True
    """False for a collective under way while the thread does other work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Begins of steps, phases and actions on the compute stream of a GPU, in order. Arrays have one entry per begin.

    The end of a step is one too if the next step has none.
    """

    step: Ints
    """Step numbers."""
    phase: Ints
    """Phase, or Phase.NONE for the begin of a step or action."""
    at_ns: Ints
    """When the stream passed the mark."""
    ahead_ns: Ints
    """How long before that the host had queued it: the host's run-ahead."""
    collectives: NDArray[np.void]
    """COLLECTIVE records of those whose start and end on the GPU the marks show, and of a pipeline's messages."""

    @property
    def empty(self) -> Bools:
        """True for marks that the stream passed at once: it had nothing to do when the host queued them."""
        found: Bools = self.ahead_ns <= self._latency_ns + EMPTY_NS
        return found

    @property
    def fed(self) -> Bools:
        """True for marks before which the stream never lacked work since the mark before: the host had queued it all
        by then. The first mark counts as fed.
        """
        queued: Bools = (self.at_ns - self.ahead_ns)[1:] + self._latency_ns <= self.at_ns[:-1]
        return np.append(True, queued)[: len(self.at_ns)]

    @property
    def _latency_ns(self) -> int:
        """Time from the launch of a mark to the earliest that it can happen."""
        return int(self.ahead_ns.min(initial=MAX_LATENCY_NS))

    def empty_at(self, times_ns: Ints) -> Bools:
        """Return whether a mark happened at each instant with nothing to do before it."""
        at = np.minimum(np.searchsorted(self.at_ns, times_ns, side="left"), len(self.at_ns) - 1)
        found: Bools = (self.at_ns[at] == times_ns) & self.empty[at]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimeline:
    """Records of one rank on the common axis."""

    rank: int
    coords: dict[str, int]
    ending: str | None
    """`clean`, the name of the exception that left the run, or None if no end is recorded."""
    names: tuple[str, ...]
    groups: tuple[Group, ...]
    threads: dict[str, NDArray[np.void]]
    """Thread -> records (`store.RECORD_DTYPE`) sorted by start, with times on the axis and OPEN ends."""
    steps: tuple[Step, ...]
    """Complete steps, in order."""
    open_step: int | None
    """Number of the step under way at the end of the records."""
    open_records: tuple[OpenRecord, ...]
    """Open intervals, the outermost first; empty after a clean end."""
    last_ns: int
    """The last instant this rank recorded."""
    observation: str = DISPATCHER
    """How it records collectives (`observation.py`)."""
    since_ns: int | None = None
    """Start of what is held, of a copy that lacks the beginning. None: the records are not a copy."""
    marks: Marks | None = None
    """Marks on the compute stream of its GPU, if `main` and `steps` are those of the GPU by these marks."""

    @property
    def on_device(self) -> bool:
        """Return whether marks on a compute stream measured `main` and `steps`."""
        return self.marks is not None

    @property
    def main(self) -> NDArray[np.void]:
        """Records of the training thread."""
        return self.threads[TRAINING_THREAD]

    @property
    def ledger_clock(self) -> LedgerClock:
        """The clock of the training thread's records."""
        return LedgerClock.DEVICE if HOST_THREAD in self.threads else LedgerClock.HOST

    @property
    def stage(self) -> int | None:
        """Position on the pipeline axis."""
        return self.coords.get(PIPELINE_AXIS)

    @property
    def in_communication(self) -> bool | None:
        """Return whether the rank communicated when its records end. None: its step has no detail, so it may have."""
        if (self.of_kind(Kind.COLLECTIVE, Kind.STALL)["end_ns"] == OPEN).any():
            return True
        if not self.steps or self.open_step is None or not self.steps[-1].detailed or self.steps[-1].requested:
            return None
        return None if self.steps[-1].number // BLOCK_STEPS != self.open_step // BLOCK_STEPS else False

    def of_kind(self, *kinds: Kind) -> NDArray[np.void]:
        """Return the training thread's records of these kinds."""
        wanted = np.zeros(1 << 8, dtype=bool)
        wanted[list(kinds)] = True
        return chosen(self.main, wanted[self.main["kind"]])

    def closed(self, records: NDArray[np.void]) -> NDArray[np.void]:
        """Return a copy in which open records end at the rank's last instant."""
        ended = records.copy()
        ended["end_ns"][records["end_ns"] == OPEN] = self.last_ns
        return ended

    def name(self, number: int) -> str:
        return self.names[number] if number < len(self.names) else f"<name {number}>"

    def axis(self, number: int) -> str:
        """Return the mesh axis of a group number of this rank."""
        return self.groups[number].axis if number < len(self.groups) else f"<group {number}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A run on one time axis."""

    run: RunRecords
    ranks: tuple[RankTimeline, ...]
    clocks: tuple[RankClock, ...]
    traces: Traces = field(default_factory=Traces)
    """Kernel traces; empty if the run was not opened from a directory."""
    witnessed: tuple[RankTimeline, ...] = ()
    """Ranks of which another host's agent knows more than the run directory: only their last seconds. No analysis of
    time uses them. `with_copies` adds those of ranks without records.
    """
    earlier: tuple["Timeline", ...] = ()
    """Earlier attempts, in order: only marks, values, steps and parts of a step that are not training. Empty if the
    run was not opened from a directory.
    """
    elsewhere: Elsewhere | None = None
    """Collectives with members that have no records here: agents of a running job reduced them, or other runs that are
    read together have them.
    """

    @property
    def ledger_clock(self) -> LedgerClock:
        on_device = bool(self.ranks) and all(rank.ledger_clock is LedgerClock.DEVICE for rank in self.ranks)
        return LedgerClock.DEVICE if on_device else LedgerClock.HOST

    @property
    def of_host_traces(self) -> bool:
        """Return whether the steps are those of traces without a GPU."""
        of_traces = self.run.info.imported and self.run.operations is None
        return of_traces and bool(self.ranks) and self.ledger_clock is LedgerClock.HOST

    @property
    def by_marks(self) -> bool:
        """Return whether marks on compute streams measured the ledger's steps, phases and stalls."""
        return any(rank.on_device for rank in self.ranks)

    @property
    def requested_steps(self) -> Mapping[int, str]:
        """Step -> reason, for steps that a rank recorded in detail only because of a request.

        They are no sample of the run: an anomaly or a person chose them, so they enter no sum.
        """
        numbers = {step.number for rank in self.ranks for step in rank.steps if step.requested}
        reasons = {
            step: request.reason
            for request in reversed(self.run.requests)
            for step in range(request.first_step, request.end_step)
        }
        return {number: reasons.get(number, UNKNOWN_REASON) for number in sorted(numbers)}

    @property
    def extent_ns(self) -> tuple[int, int]:
        """First and last instant of any record or kernel; without one, twice the instant at which the run was made."""
        starts = [int(rank.main["start_ns"].min()) for rank in self.ranks if len(rank.main)]
        ends = [rank.last_ns for rank in self.ranks]
        for trace in (trace for parts in self.traces.ranks.values() for trace in parts if len(trace)):
            starts.append(int(trace.start_ns.min()))
            ends.append(int(trace.end_ns.max()))
        return (min(starts), max(ends)) if starts else (self.run.info.started_wall_ns,) * 2

    @property
    def start_ns(self) -> int:
        return min(int(rank.main["start_ns"].min()) for rank in self.ranks if len(rank.main))

    @property
    def end_ns(self) -> int:
        return max(rank.last_ns for rank in self.ranks)
