"""Updates that some ranks leave out, although all have reduced the gradients: replicas of the model drift apart.

That happens where each rank decides by its own loss or gradient norm whether to call the optimizer. The backwards of
two ranks are the same one if torch's count on DDP's group is: each rank may count its steps from other places.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from traincope.analysis.faults.anomalies.late_backwards import outer
from traincope.analysis.faults.anomalies.unreduced import gradient_bytes, is_averaged, is_of_ddp
from traincope.arrays import Ints
from traincope.events import GRADIENT_FUNCTIONS, ZEROING, Flag, Kind, Phase
from traincope.timeline import RankTimeline, Timeline
from traincope.timeline.intervals.numbering import UNKNOWN, Numbering


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutUpdates:
    ranks: tuple[int, ...]
    """Ranks that left out most; if most ranks left out some, those that did not."""
    left_out: Mapping[int, int]
    """Rank -> backwards without its update, for the ranks that have such."""
    num_backwards: int
    """Backwards that are known on all ranks, with an update on one of them."""
    since: int
    """Step of the first one that a rank left out, as a rank counts it that did not."""


def left_out_updates(timeline: Timeline) -> LeftOutUpdates | None:
    """Find reduced gradients that only some ranks used; None if all did, or if the records do not show it."""
    if len(timeline.ranks) < 2 or timeline.run.missing or not all(map(is_of_ddp, timeline.ranks)):
        return None
    used = {rank.rank: _used(rank) for rank in timeline.ranks}
    common = sorted(set.intersection(*(set(each) for each in used.values())))
    updated = [key for key in common if any(each[key][0] for each in used.values())]
    left_out = {rank: sum(not each[key][0] for key in updated) for rank, each in used.items()}
    if not any(left_out.values()) or any(number == len(updated) for number in left_out.values()):
        return None
    if all(map(_is_averaged, timeline.ranks)):
        return None  # replicas that train alone for some steps
    first = next(key for key in updated if not all(each[key][0] for each in used.values()))
    return LeftOutUpdates(
        ranks=_odd(left_out),
        left_out={rank: number for rank, number in left_out.items() if number},
        num_backwards=len(updated),
        since=min(each[first][1] for each in used.values() if each[first][0]),
    )


def _is_averaged(rank: RankTimeline) -> bool:
    num_bytes = gradient_bytes(rank)
    return num_bytes is not None and is_averaged(rank, num_bytes, beyond_usual=True)


def _odd(left_out: Mapping[int, int]) -> tuple[int, ...]:
    usual, votes = Counter(left_out.values()).most_common(1)[0]
    if 2 * votes <= len(left_out):
        usual = min(left_out.values())
    return tuple(rank for rank, number in sorted(left_out.items()) if number != usual)


def _used(rank: RankTimeline) -> Mapping[int, tuple[bool, int]]:
    """Torch's count at the last collective of a backward -> whether an update followed before the next backward, and
    the step of the backward. The last backward is left out: its update may not have come yet.
    """
    phases = rank.closed(rank.of_kind(Kind.PHASE))
    backwards = outer(phases[phases["phase"] == Phase.BACKWARD])
    if len(backwards) < 2:
        return {}
    others = [at for at, name in enumerate(rank.names) if name in (ZEROING, *GRADIENT_FUNCTIONS)]
    updates = np.sort(phases["start_ns"][(phases["phase"] == Phase.OPTIMIZER) & ~np.isin(phases["name"], others)])
    before = np.searchsorted(updates, backwards["start_ns"])
    is_used = before[1:] > before[:-1]
    start_ns, count = _counted(rank)
    at = np.searchsorted(backwards["start_ns"], start_ns, side="right") - 1
    inside = (at >= 0) & (start_ns < backwards["end_ns"][at])
    last = np.full(len(backwards), UNKNOWN, dtype=np.int64)
    np.maximum.at(last, at[inside], count[inside])
    rows = zip(last[:-1].tolist(), is_used.tolist(), backwards["step"][:-1].tolist(), strict=True)
    return {number: (used, step) for number, used, step in rows if number != UNKNOWN}


def _counted(rank: RankTimeline) -> tuple[Ints, Ints]:
    """Start of each collective, and torch's count on the group: windows begin to number at other ones on each rank."""
    shared = [group.number for group in rank.groups if len(group.ranks) > 1]
    sent = np.concatenate([records[records["kind"] == Kind.COLLECTIVE] for records in rank.threads.values()])
    sent = sent[(sent["flags"] & Flag.POINT_TO_POINT == 0) & np.isin(sent["group"], shared)]
    firsts = sent[sent["tag"] > 0]
    windows = Numbering.of(firsts["window"].astype(np.int64))
    begun = np.zeros(len(windows) + 1, dtype=np.int64)  # the last is of windows whose begin is unknown
    begun[windows.number(firsts["window"].astype(np.int64))] = firsts["tag"].astype(np.int64) - firsts["sequence"]
    base = begun[windows.number(sent["window"].astype(np.int64))]
    return sent["start_ns"][base > 0], (base + sent["sequence"])[base > 0]
