"""Cost of background saves to the steps during them.

A background save competes with the training for cores, memory and the network. The steps that it touches are compared
with those before it, which belong to no other save: so the saves are independent samples. The lengths of steps are
without the time for which the training stops for a checkpoint (`checkpoint_stall`).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from traincope.analysis.ledger.ledger import Ledger, RankLedger
from traincope.analysis.student import student_quantile
from traincope.arrays import Bools, Floats, Ints
from traincope.events import CHECKPOINT_FAILED, CHECKPOINT_SAVED, OPEN, Phase
from traincope.store.job.attempts import SAVING_LATER
from traincope.store.segments.segments import recorder_events
from traincope.timeline import LedgerClock, RankTimeline, Timeline

NEIGHBOURS = 8
"""Steps before a save that those during it are compared with."""
MIN_NEIGHBOURS = 3
MIN_SAVES = 8
TRIMMED = 0.2
"""Share of the saves left out on each side: what else runs on the machine can double the time of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCost:
    """Trimmed mean over the saves, ns, with its interval of 95 % by Student's t with winsorized variance (Tukey and
    McLaughlin 1963; Wilcox, Introduction to Robust Estimation and Hypothesis Testing, 2012, section 4.3).
    """

    estimate: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundSaves:
    """Background saves of the last attempt whose end is recorded."""

    saves: int
    """Number of these saves."""
    steps: int
    """Steps that a save touches."""
    extra_ns: SaveCost | None
    """Time that one save adds to the steps that it touches, over the saves; None with a reason."""
    ratio: float | None
    """`extra_ns.estimate` times the saves, relative to the time of all usual steps without checkpoint stalls."""
    reason: str | None
    """Reason why the cost is unknown."""


def background_saves(timeline: Timeline, ledger: Ledger) -> BackgroundSaves | None:
    """Compare the steps during background saves with others; None without such saves. The lowest rank has the saves."""
    rank = min(timeline.ranks, key=lambda each: each.rank, default=None)
    spans = [] if rank is None else list(_saves(rank))
    if rank is None or not spans:
        return None
    steps = _training_steps(rank, ledger)
    touched = [steps.during(*span) for span in spans]
    free = np.ones(len(steps.length_ns), dtype=bool)
    for first, last in touched:
        free[first:last] = False
    extra_ns = [extra for span in touched if (extra := _extra_ns(span, steps.length_ns, free)) is not None]
    reason = None
    if ledger.clock is LedgerClock.DEVICE:
        reason = "the GPUs' clocks measure the steps, and show no checkpoint stall in steps without detail"
    elif len(extra_ns) < MIN_SAVES:
        reason = f"only {len(extra_ns)} saves follow {MIN_NEIGHBOURS} steps or more without a save, not {MIN_SAVES}"
    mean = None if reason else _mean(np.sort(extra_ns))
    return BackgroundSaves(
        saves=len(spans),
        steps=int((~free).sum()),
        extra_ns=mean,
        ratio=None if mean is None else mean.estimate * len(spans) / float(steps.length_ns.sum()),
        reason=reason,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    """Usual steps of the job, in order."""

    start_ns: Ints
    """On the rank with the saves; so is `end_ns`."""
    end_ns: Ints
    length_ns: Floats
    """Mean over the ranks, without checkpoint stalls."""

    def during(self, begin_ns: int, end_ns: int) -> tuple[int, int]:
        """Return the position of the first step that overlaps the time, and of the one after the last."""
        first = int(np.searchsorted(self.end_ns, begin_ns, side="right"))
        return first, max(first, int(np.searchsorted(self.start_ns, end_ns, side="left")))


def _training_steps(rank: RankTimeline, ledger: Ledger) -> _Steps:
    numbers = np.concatenate([each.numbers[each.timed] for each in ledger.ranks])
    lengths = np.concatenate([_training_ns(each)[each.timed] for each in ledger.ranks])
    spans = {step.number: (step.start_ns, step.end_ns) for step in rank.steps}
    distinct, at = np.unique(numbers, return_inverse=True)
    mean = np.bincount(at, weights=lengths) / np.bincount(at)
    here = np.array([number in spans for number in distinct.tolist()], dtype=bool)
    own = np.array([spans[number] for number in distinct[here].tolist()], dtype=np.int64).reshape(-1, 2)
    return _Steps(start_ns=own[:, 0], end_ns=own[:, 1], length_ns=mean[here])


def _training_ns(rank: RankLedger) -> Ints:
    stalled = rank.terms.get("checkpoint_stall")
    return rank.wall_ns if stalled is None else rank.wall_ns - stalled


def _saves(rank: RankTimeline) -> Iterator[tuple[int, int]]:
    """From the return of a call that began a save to the save's end.

    Saves that are in flight together are left out: no record shows which of them has ended.
    """
    stalls = rank.main[rank.main["phase"] == Phase.CHECKPOINT_STALL]
    began = [stall for stall in stalls if rank.name(int(stall["name"])).partition(" ")[0] == SAVING_LATER]
    returned = np.sort(np.array([stall["end_ns"] for stall in began if stall["end_ns"] != OPEN], dtype=np.int64))
    events = recorder_events(rank.main)
    named = [rank.name(name) for name in events["name"].tolist()]
    before = 0
    for end_ns, name in zip(events["start_ns"].tolist(), named, strict=True):
        if name in (CHECKPOINT_SAVED, CHECKPOINT_FAILED):
            begun = int(np.searchsorted(returned, end_ns, side="right"))
            if begun == before + 1 and name == CHECKPOINT_SAVED:
                yield int(returned[before]), end_ns
            before = begun


def _extra_ns(span: tuple[int, int], length_ns: Floats, free: Bools) -> float | None:
    """Time that the steps of a save take more than those before it; None if too few before it touch no save."""
    first, last = span
    before = free[max(first - NEIGHBOURS, 0) : first]
    taken = np.flatnonzero(~before)
    usual = length_ns[first - len(before) :][taken[-1] + 1 if len(taken) else 0 : len(before)]
    if first == last or len(usual) < MIN_NEIGHBOURS:
        return None
    return float((length_ns[first:last] - np.median(usual)).sum())


def _mean(ordered: Floats) -> SaveCost:
    """Estimate the mean of ordered samples."""
    cut, number = int(TRIMMED * len(ordered)), len(ordered)
    winsorized = np.clip(ordered, ordered[cut], ordered[number - cut - 1])
    kept = number - 2 * cut
    estimate = float(ordered[cut : number - cut].mean())
    error = float(winsorized.std(ddof=1)) * number**0.5 / kept
    half = student_quantile(kept - 1) * error
    return SaveCost(estimate=estimate, low=estimate - half, high=estimate + half)
