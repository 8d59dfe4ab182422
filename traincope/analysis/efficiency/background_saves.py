"""Cost of background saves to the steps during them: their shadow.

A background save competes with the training for cores, memory and the network. The steps that it touches are compared
with those before it, which belong to no other save: so the saves are independent samples. Time for which the training
stops for a checkpoint (`checkpoint_stall`) is in neither.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from traincope.analysis.ledger.estimates import student_quantile
from traincope.analysis.ledger.ledger import Ledger, RankLedger
from traincope.arrays import Bools, Floats, Ints
from traincope.events import CHECKPOINT_SAVED, OPEN, Phase
from traincope.store.job.attempts import SAVING_LATER
from traincope.store.segments.segments import recorder_events
from traincope.timeline import RankTimeline, Timeline

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
    steps: int
    """Steps that a save touches."""
    extra_ns: SaveCost | None
    """Time that one save adds to the steps that it touches, over the saves; None with a reason."""
    ratio: float | None
    """This time of all saves, relative to all steps."""
    reason: str | None


def background_saves(timeline: Timeline, ledger: Ledger) -> BackgroundSaves | None:
    """Compare the steps during background saves with others; None without such saves. The lowest rank has the saves."""
    rank = min(timeline.ranks, key=lambda each: each.rank, default=None)
    spans = [] if rank is None else list(_saves(rank))
    if rank is None or not spans:
        return None
    numbers, length_ns = _training_steps(ledger)
    touched = [_touched(rank, numbers, begin_ns, end_ns) for begin_ns, end_ns in spans]
    during = np.logical_or.reduce(touched)
    extra_ns = [extra for save in touched if (extra := _extra_ns(save, length_ns, during)) is not None]
    known = len(extra_ns) >= MIN_SAVES
    mean = _mean(np.sort(extra_ns)) if known else None
    return BackgroundSaves(
        saves=len(spans),
        steps=int(during.sum()),
        extra_ns=mean,
        ratio=None if mean is None else mean.estimate * len(spans) / float(length_ns.sum()),
        reason=None if known else f"{len(extra_ns)} saves can be compared with the steps before them, not {MIN_SAVES}",
    )


def _saves(rank: RankTimeline) -> Iterator[tuple[int, int]]:
    """From the return of each call that began a save to the save's end."""
    stalls = rank.main[rank.main["phase"] == Phase.CHECKPOINT_STALL]
    began = [stall for stall in stalls if rank.name(int(stall["name"])).partition(" ")[0] == SAVING_LATER]
    returned = np.sort(np.array([stall["end_ns"] for stall in began if stall["end_ns"] != OPEN], dtype=np.int64))
    for event in recorder_events(rank.main):
        at = int(np.searchsorted(returned, event["start_ns"], side="right")) - 1
        if at >= 0 and rank.name(int(event["name"])) == CHECKPOINT_SAVED:
            yield int(returned[at]), int(event["start_ns"])


def _training_steps(ledger: Ledger) -> tuple[Ints, Floats]:
    """Numbers of the usual steps, and their mean length over the ranks without checkpoint stalls."""
    parts = [(rank.numbers[rank.timed], _training_ns(rank)[rank.timed]) for rank in ledger.ranks]
    numbers, at = np.unique(np.concatenate([part for part, _ in parts]), return_inverse=True)
    sums = np.bincount(at, weights=np.concatenate([part for _, part in parts]), minlength=len(numbers))
    mean: Floats = sums / np.maximum(np.bincount(at, minlength=len(numbers)), 1)
    return numbers, mean


def _training_ns(rank: RankLedger) -> Ints:
    stalled = rank.terms.get("checkpoint_stall")
    return rank.wall_ns if stalled is None else rank.wall_ns - stalled


def _touched(rank: RankTimeline, numbers: Ints, begin_ns: int, end_ns: int) -> Bools:
    inside = [step.number for step in rank.steps if step.start_ns < end_ns and begin_ns < step.end_ns]
    touched: Bools = np.isin(numbers, inside)
    return touched


def _extra_ns(save: Bools, length_ns: Floats, during: Bools) -> float | None:
    """Time that the steps of a save take more than those before it; None if there are too few."""
    inside = np.flatnonzero(save)
    if not len(inside):
        return None
    before = np.flatnonzero(during[: inside[0]])
    first = max(inside[0] - NEIGHBOURS, before[-1] + 1 if len(before) else 0)
    usual = length_ns[first : inside[0]]
    return float((length_ns[save] - np.median(usual)).sum()) if len(usual) >= MIN_NEIGHBOURS else None


def _mean(ordered: Floats) -> SaveCost:
    """Estimate the mean of ordered samples."""
    cut, number = int(TRIMMED * len(ordered)), len(ordered)
    winsorized = np.clip(ordered, ordered[cut], ordered[number - cut - 1])
    kept = number - 2 * cut
    estimate = float(ordered[cut : number - cut].mean())
    error = float(winsorized.std(ddof=1)) * number**0.5 / kept
    half = student_quantile(kept - 1) * error
    return SaveCost(estimate=estimate, low=estimate - half, high=estimate + half)
