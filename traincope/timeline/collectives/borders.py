"""Windows that members of a group begin at different collectives, made equal by torch's own counts.

A window begins with a step. Where one rank alone fetches the data and sends each its part, its step begins before that
message, and the others' steps after it: their counts in the window are apart by one, and each collective would match
the next one of the others. Torch counts a group's collectives on every member from the group's begin. So a member's
calls that the others have in the next window are moved there.

Torch's counts of earlier trainings may differ, so they count from the first window that all members have. If that does
not make the operations agree, they count from the group's begin.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import Bools, Ints
from traincope.events import MONITORED, Flag, Kind
from traincope.timeline.intervals.numbering import UNKNOWN
from traincope.timeline.timeline import RankTimeline


@dataclass(frozen=True, slots=True)
class _Member:
    """A rank's records of one group: those of each thread, which are changed in place."""

    rank: RankTimeline
    chosen: tuple[tuple[NDArray[np.void], Bools], ...]
    """Records of a thread, and which of them are COLLECTIVEs or STALLs of the group."""
    begins: dict[int, int]
    """Window -> torch's count at the member's first collective in it."""
    counts: dict[int, int]
    """Window -> number of its collectives."""

    @property
    def is_sound(self) -> bool:
        """True if each window's count is known, and torch counted at least what was recorded."""
        windows = sorted(self.counts)
        return [*sorted(self.begins)] == windows and all(
            self.begins[later] - self.begins[window] >= self.counts[window] for window, later in pairwise(windows)
        )

    def operations(self, window: int, *, until: int) -> dict[int, str]:
        """Number of each collective in the window -> its operation."""
        found: dict[int, str] = {}
        for records, chosen in self.chosen:
            of = records[chosen & (records["kind"] == Kind.COLLECTIVE) & (records["window"] == window)]
            found |= {
                int(sequence): self.rank.name(int(name))
                for sequence, name in zip(of["sequence"], of["name"], strict=True)
                if sequence < until
            }
        return found


MAX_WINDOWS, MAX_COMPARED = 8, 64
"""Number of windows with different counts whose operations are compared, and of collectives in each."""


def even_windows(ranks: Sequence[RankTimeline]) -> None:
    """Give calls that members count in different windows the same window and count. Changes the records in place."""
    for key in _uneven_groups(ranks):
        members = [_member(rank, key) for rank in ranks if any(group.key == key for group in rank.groups)]
        members = [member for member in members if member.counts]
        alike = len({member.rank.observation for member in members}) == 1
        if len(members) < 2 or not alike or not all(member.is_sound for member in members):
            continue
        shared = sorted(set.intersection(*(set(member.begins) for member in members)))
        since_first = [member.begins[shared[0]] if shared else 0 for member in members]
        for bases in (since_first, [0] * len(members)):
            if _see_border_apart(members, shared, bases):
                _move(members, bases)
                break


def _uneven_groups(ranks: Sequence[RankTimeline]) -> list[str]:
    """Keys of groups whose members have different counts of torch at the begin of some window.

    Torch counts messages too, and a member may have more of them than another.
    """
    numbers: dict[str, int] = {}
    rows, apart = [], set()
    for rank in ranks:
        known = [numbers.setdefault(group.key, len(numbers)) for group in rank.groups]
        keys = np.array([*known, len(known) - 1] if known else [UNKNOWN], dtype=np.int64)
        monitored = [at for at, name in enumerate(rank.names) if name == MONITORED]
        for records in rank.threads.values():
            sent = records[records["kind"] == Kind.COLLECTIVE]
            key = keys[np.minimum(sent["group"], len(keys) - 1)]
            uncounted = (sent["flags"] & Flag.POINT_TO_POINT > 0) | np.isin(sent["name"], monitored)
            apart |= set(np.unique(key[uncounted]).tolist())
            first = ~uncounted & (sent["tag"] > 0)
            rows.append(np.stack([key[first], sent["window"][first].astype(np.int64), sent["tag"][first]]))
    key, window, count = np.concatenate(rows, axis=1) if rows else np.empty((3, 0), dtype=np.int64)
    order = np.lexsort((count, window, key))
    key, window, count = key[order], window[order], count[order]
    same = (key[1:] == key[:-1]) & (window[1:] == window[:-1])
    uneven = set(np.unique(key[1:][same & (count[1:] != count[:-1])]).tolist()) - apart
    return [name for name, number in numbers.items() if number in uneven]


def _member(rank: RankTimeline, key: str) -> _Member:
    numbers = [at for at, group in enumerate(rank.groups) if group.key == key]
    chosen: list[tuple[NDArray[np.void], Bools]] = []
    begins: dict[int, int] = {}
    counts: dict[int, int] = {}
    for records in rank.threads.values():
        mine = np.isin(records["group"], numbers) & np.isin(records["kind"], (Kind.COLLECTIVE, Kind.STALL))
        mine &= records["flags"] & Flag.POINT_TO_POINT == 0
        chosen.append((records, mine))
        calls = records[mine & (records["kind"] == Kind.COLLECTIVE)]
        windows, at = np.unique(calls["window"], return_inverse=True)
        last = np.zeros(len(windows), dtype=np.int64)
        np.maximum.at(last, at, calls["sequence"].astype(np.int64))
        for window, sequence in zip(windows.tolist(), last.tolist(), strict=True):
            counts[window] = max(counts.get(window, 0), sequence + 1)
        first = calls[calls["tag"] > 0]
        begins |= dict(zip(first["window"].tolist(), first["tag"].tolist(), strict=True))
    return _Member(rank=rank, chosen=tuple(chosen), begins=begins, counts=counts)


def _see_border_apart(members: Sequence[_Member], windows: Sequence[int], bases: Sequence[int]) -> bool:
    """Return whether operations differ by the members' counts in the windows and agree by torch's counts.

    If a member leaves a collective out, torch's counts differ too, but later windows agree by the counts in them.
    """
    by_torch = (
        (window, [member.begins[window] - base for member, base in zip(members, bases, strict=True)])
        for window in windows
    )
    uneven = list(islice((each for each in by_torch if len(set(each[1])) > 1), MAX_WINDOWS))
    return bool(uneven) and all(
        _agree(members, window, begins) and not _agree(members, window, [0] * len(members)) for window, begins in uneven
    )


def _agree(members: Sequence[_Member], window: int, begins: Sequence[int]) -> bool:
    """Return whether the members' operations are equal where their counts, from these on, are equal."""
    known: dict[int, str] = {}
    for member, begin in zip(members, begins, strict=True):
        for sequence, operation in member.operations(window, until=MAX_COMPARED).items():
            if known.setdefault(begin + sequence, operation) != operation:
                return False
    return True


def _move(members: Sequence[_Member], bases: Sequence[int]) -> None:
    """Number each call by torch's count, and give it the last window that some member had begun by then."""
    least: dict[int, int] = {}
    for member, base in zip(members, bases, strict=True):
        for window, count in member.begins.items():
            least[window] = min(least.get(window, count - base), count - base)
    windows = np.array(sorted(least), dtype=np.int64)
    begins = np.array([least[window] for window in windows.tolist()], dtype=np.int64)
    if (np.diff(begins) <= 0).any():
        return
    first = max(*bases, 1)
    for member, base in zip(members, bases, strict=True):
        own = np.array(sorted(member.begins), dtype=np.int64)
        since = np.array([member.begins[window] - base for window in own.tolist()], dtype=np.int64)
        for records, chosen in member.chosen:
            _renumber(records, chosen, windows, begins, own=own, since=since, first=first)


def _renumber(
    records: NDArray[np.void], chosen: Bools, windows: Ints, begins: Ints, *, own: Ints, since: Ints, first: int
) -> None:
    at = np.searchsorted(own, records["window"][chosen].astype(np.int64))
    known = (at < len(own)) & (own[np.minimum(at, len(own) - 1)] == records["window"][chosen])
    rows = np.flatnonzero(chosen)[known]  # stalls of collectives that were not recorded stay as they are
    count = since[at[known]] + records["sequence"][rows].astype(np.int64)
    place = np.searchsorted(begins, count, side="right") - 1
    records["window"][rows] = windows[place]
    records["sequence"][rows] = count - begins[place]
    calls = records["kind"][rows] == Kind.COLLECTIVE
    records["tag"][rows[calls]] = np.where(count == begins[place], count + first, 0)[calls]
