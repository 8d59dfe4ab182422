"""How long a run may stand still before that is a hang, learned from its own steps, checkpoints and evaluations."""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import Ints
from traincope.events import END_OF_TIME_NS, OPEN, Flag, Kind, Phase
from traincope.timeline import Timeline
from traincope.timeline.intervals.union import Union

FLOOR_NS = 5_000_000_000
MULTIPLE = 3
"""Times the longest step or pause so far."""
STALL_NS = 60_000_000_000
"""Shortest stop that is a hang by its length alone."""
STALL_MULTIPLE = 10
"""Times the longest step or pause so far up to which a stop is no hang by its length."""
HANG_SECONDS_VARIABLE = "TRAINCOPE_HANG_SECONDS"
"""Length from which a stop is a hang, in place of both."""
UNLEARNED_NS = 600_000_000_000
"""Time for first steps and for pauses whose usual length is not known."""
UNSEEN_NS = 60_000_000_000
"""Least time without any stack or recorded wait: the records alone then show nothing but silence."""
MIN_STEPS = 3
"""Fewest complete steps to learn from."""
PAUSE_FLOOR_NS = 30_000_000_000
"""Least time for a pause. Its length varies more than that of a step, e.g. with the load of a shared disk."""
PAUSES = (Phase.CHECKPOINT_STALL, Phase.EVALUATION, Phase.COMPILE, Phase.GC, Phase.JOB_WAIT)
"""Phases that may take long without a fault."""
LEARNED = (Phase.CHECKPOINT_STALL, Phase.EVALUATION, Phase.GC, Phase.JOB_WAIT)
"""Pauses of which the next takes about as long as the ones before. A compilation may compile anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """The longest steps, without their pauses, and the longest pauses of a run so far."""

    steps_ns: tuple[int, ...] = ()
    """The `MIN_STEPS` longest."""
    pauses_ns: Mapping[Phase, int] = field(default_factory=dict)
    """The longest of each pause that ended at least once."""
    hang_seconds: float | None = None
    """Length from which a stop is a hang, as given by the user; None without."""
    imported: bool = False
    """Dumps have no steps. They were written because the job stood still."""

    def with_steps(self, lengths_ns: Iterable[int]) -> "Patience":
        """Learn from further steps, the run's first one left out: it also prepares."""
        longest = heapq.nlargest(MIN_STEPS, [*self.steps_ns, *lengths_ns])
        return replace(self, steps_ns=tuple(longest))

    def with_pauses(self, pauses_ns: Mapping[Phase, int]) -> "Patience":
        longest = {
            phase: max(self.pauses_ns.get(phase, 0), pauses_ns.get(phase, 0)) for phase in {*self.pauses_ns, *pauses_ns}
        }
        return replace(self, pauses_ns=longest)

    @property
    def training_ns(self) -> int:
        """Longest time without progress outside of pauses that is not a hang."""
        if self.imported:
            return 0
        return max(FLOOR_NS, MULTIPLE * max(self.steps_ns)) if self.has_learned else UNLEARNED_NS

    @property
    def hang_ns(self) -> int:
        """Length from which a stop is a hang without evidence that it cannot end by itself."""
        if self.hang_seconds is not None:
            return round(self.hang_seconds * 1e9)
        return max([STALL_NS, *(STALL_MULTIPLE * ns for ns in (*self.steps_ns, *self.pauses_ns.values()))])

    @property
    def has_learned(self) -> bool:
        return len(self.steps_ns) == MIN_STEPS

    def of(self, phase: Phase | None) -> int:
        """The same for a rank whose innermost open phase this is."""
        if phase not in PAUSES:
            return self.training_ns
        longest_ns = self.pauses_ns.get(phase) if phase in LEARNED else None
        pause_ns = UNLEARNED_NS if longest_ns is None else max(PAUSE_FLOOR_NS, MULTIPLE * longest_ns)
        return max(self.training_ns, pause_ns)


def patience(timeline: Timeline) -> Patience:
    """Learn from a whole run."""
    if timeline.run.info.imported:
        return Patience(imported=True)
    learned = Patience(hang_seconds=given_seconds(timeline.run.info.environment))
    for rank in timeline.ranks:
        starts, ends = _columns([(step.start_ns, step.end_ns) for step in rank.steps[1:]])
        learned = learned.with_steps(lengths_without_pauses(rank.main, starts, ends)).with_pauses(pauses(rank.main))
    return learned


def given_seconds(environment: Mapping[str, str]) -> float | None:
    """The length that the user set for the training; None without one, or for what is no time."""
    try:
        seconds = float(environment[HANG_SECONDS_VARIABLE])
    except (KeyError, ValueError):
        return None
    return seconds if 0 < seconds < END_OF_TIME_NS / 1e9 else None


def lengths_without_pauses(main: NDArray[np.void], starts_ns: Ints, ends_ns: Ints) -> Sequence[int]:
    """Return the length of each interval of a training thread without the pauses in it."""
    paused = _ended_pauses(main)
    covered_ns = Union.of(paused["start_ns"], paused["end_ns"]).covered_ns(starts_ns, ends_ns)
    lengths: list[int] = (ends_ns - starts_ns - covered_ns).tolist()
    return lengths


def pauses(main: NDArray[np.void]) -> dict[Phase, int]:
    """Return the longest of each pause of a training thread that ended well."""
    paused = _ended_pauses(main)
    lengths_ns = paused["end_ns"] - paused["start_ns"]
    return {
        phase: int(lengths_ns[paused["phase"] == phase].max()) for phase in LEARNED if np.any(paused["phase"] == phase)
    }


def open_phase(main: NDArray[np.void]) -> Phase | None:
    """Return the innermost open phase of a training thread."""
    phases = main[(main["kind"] == Kind.PHASE) & (main["end_ns"] == OPEN)]
    return Phase(int(phases["phase"][-1])) if len(phases) else None


def _ended_pauses(main: NDArray[np.void]) -> NDArray[np.void]:
    ended = (main["kind"] == Kind.PHASE) & (main["end_ns"] != OPEN) & (main["flags"] & Flag.RAISED == 0)
    chosen: NDArray[np.void] = main[ended & np.isin(main["phase"], PAUSES)]
    return chosen


def _columns(intervals: Sequence[tuple[int, int]]) -> tuple[Ints, Ints]:
    table = np.array(intervals, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]
