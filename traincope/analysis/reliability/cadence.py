"""Cost of a checkpoint and the interval between checkpoints, as recorded; and the interval that loses least time.

The time lost at an interval is 1 - `plan.cadence.useful_ratio`: Daly's model of independent failures at the measured
rate. Its range follows from the interval of the mean time between interruptions.
"""

from dataclasses import dataclass

import numpy as np

from traincope.analysis.efficiency.background_saves import BackgroundSaves
from traincope.analysis.reliability.mtbf import Mtbf
from traincope.arrays import Ints
from traincope.events import OPEN, Kind, Phase
from traincope.plan.cadence import Failures, daly_seconds, useful_ratio
from traincope.store.job.attempts import SAVING, SAVING_LATER
from traincope.timeline import RankTimeline, Timeline

SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Saves:
    """Checkpoints of the last attempt, by its lowest rank."""

    count: int
    """Completed calls that save, or begin to save."""
    stall_ns: float
    """Mean time that training stops for one."""
    longest_ns: int
    background_ns: float | None
    """Time that one adds to the steps during it (`background_saves`); None: unknown, or it saves before it returns."""
    interval_ns: float | None
    """Mean time from the end of one stop to the begin of the next; None: fewer than two."""

    @property
    def cost_ns(self) -> float:
        """Time that one costs: its stall, and what it adds to the steps."""
        return self.stall_ns + max(self.background_ns or 0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cadence:
    """The recorded interval between checkpoints against Daly's (2006), in ns of training. Ratios are of all time."""

    interval_ns: float
    best_ns: float
    best_low_ns: float
    """The best interval at the lower limit of the mean time between interruptions; `best_high_ns`: at the upper."""
    best_high_ns: float
    lost_ratio: float
    """Expected share of time lost to saves, repeated steps and restarts at the recorded interval."""
    best_lost_ratio: float
    certain: bool
    """True if the best interval also loses less at both limits of the mean time between interruptions."""

    @property
    def gain_ratio(self) -> float:
        return self.lost_ratio - self.best_lost_ratio


def recorded_saves(timeline: Timeline, background: BackgroundSaves | None) -> Saves | None:
    """Measure the saves of the last attempt; None without one."""
    rank = min(timeline.ranks, key=lambda each: each.rank, default=None)
    saves = np.empty((0, 2), dtype=np.int64) if rank is None else _saves(rank)
    if not len(saves):
        return None
    lengths = saves[:, 1] - saves[:, 0]
    between = saves[1:, 0] - saves[:-1, 1]
    extra = None if background is None else background.extra_ns
    return Saves(
        count=len(saves),
        stall_ns=float(lengths.mean()),
        longest_ns=int(lengths.max()),
        background_ns=None if extra is None else extra.estimate,
        interval_ns=float(between.mean()) if len(between) else None,
    )


def cadence(saves: Saves | None, between: Mtbf | None, *, restart_ns: float) -> Cadence | None:
    """Compare the recorded interval with the best one. None without an interruption, or without two saves.

    `restart_ns`: mean time of a restart.
    """
    if saves is None or not saves.interval_ns or not saves.cost_ns or between is None:
        return None
    if between.ns is None or between.high_ns is None:
        return None
    expected, low, high = (
        Failures(
            mtbf_seconds=mtbf_ns / SECOND_NS,
            save_seconds=saves.cost_ns / SECOND_NS,
            restart_seconds=restart_ns / SECOND_NS,
        )
        for mtbf_ns in (between.ns, between.low_ns, between.high_ns)
    )
    now, best = saves.interval_ns / SECOND_NS, daly_seconds(expected)
    return Cadence(
        interval_ns=saves.interval_ns,
        best_ns=best * SECOND_NS,
        best_low_ns=daly_seconds(low) * SECOND_NS,
        best_high_ns=daly_seconds(high) * SECOND_NS,
        lost_ratio=1 - useful_ratio(expected, now),
        best_lost_ratio=1 - useful_ratio(expected, best),
        certain=all(useful_ratio(limit, best) > useful_ratio(limit, now) for limit in (low, high)),
    )


def _saves(rank: RankTimeline) -> Ints:
    """(start, end) of each completed stop of the training for a save."""
    stalls = rank.main[(rank.main["phase"] == Phase.CHECKPOINT_STALL) & (rank.main["kind"] == Kind.PHASE)]
    stalls = stalls[stalls["end_ns"] != OPEN]
    words = [rank.name(int(number)).partition(" ")[0] for number in stalls["name"]]
    saving = np.isin(words, (SAVING, SAVING_LATER)) if words else np.empty(0, dtype=bool)
    return np.stack([stalls["start_ns"][saving], stalls["end_ns"][saving]], axis=1).astype(np.int64)
