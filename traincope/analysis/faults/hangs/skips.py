"""Collectives that a rank left out between two windows, by torch's own counts at the begin of each window.

All members of a group issue the same collectives, so from window to window torch's counts on the group grow alike. A
difference that stays in all later windows is a collective too few or too many. The majority is right. In a group of
two, it is the rank that issued as many in each step between as in the steps with detail.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from traincope.analysis.faults.hangs.calls import Call, RankCalls, calls_until
from traincope.analysis.faults.hangs.mismatches import Mismatch
from traincope.events import CLEAN
from traincope.timeline import Channel, Instances, Timeline
from traincope.units import numbers

MAX_NAMED = 4
MIN_WINDOWS = 2
"""Number of windows that show the difference, unless a rank ended badly: at one border, ranks may be at odds."""
HABIT_STEPS = 3
"""Number of a window's last steps that show a habit. The first ones of a training may issue more."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """Collectives of one rank on one group in one window, by torch's count."""

    first: int
    end: int
    """The count after the last one."""


Windows = Mapping[int, Mapping[int, _Seen]]
"""Window -> rank -> what is known, for windows that all members have."""


def skipped_between_windows(timeline: Timeline, instances: Instances) -> Iterator[Mismatch]:
    """The first skip of each group."""
    if instances.num_shifted:
        for code, windows in _windows(instances).items():
            yield from _skip(timeline, instances, code, windows)


def _windows(instances: Instances) -> dict[int, Windows]:
    """Channel -> its windows. Groups with messages have no common count."""
    parts = instances.parts
    keys = (parts.channel, parts.window, parts.rank)
    issued = Counter(zip(*(each.tolist() for each in keys), strict=True))
    first = np.flatnonzero(parts.torch_count > 0)
    table: dict[int, dict[int, dict[int, _Seen]]] = defaultdict(lambda: defaultdict(dict))
    size: dict[int, int] = {}
    columns = (*keys, parts.torch_count, parts.group_size)
    for channel, window, rank, torch_count, members in zip(*(each[first].tolist() for each in columns), strict=True):
        table[channel][window][rank] = _Seen(torch_count, torch_count + issued[channel, window, rank])
        size[channel] = members
    with_messages = {channel.group for channel in instances.channels if channel.direct}
    return {
        channel: {window: windows[window] for window in sorted(windows) if len(windows[window]) == size[channel]}
        for channel, windows in table.items()
        if instances.channels[channel].group not in with_messages
    }


def _skip(timeline: Timeline, instances: Instances, code: int, windows: Windows) -> Iterator[Mismatch]:
    order = list(windows)
    differing = [window for window in order if len(_since(windows, order[0], window)) > 1]
    lasting = bool(differing) and order[-len(differing) :] == differing
    clean = all(rank.ending == CLEAN for rank in timeline.ranks)
    if not lasting or (clean and len(differing) < MIN_WINDOWS):
        return
    before, after = order[-len(differing) - 1], differing[0]
    issued = {rank: seen.first - windows[before][rank].end for rank, seen in windows[after].items()}
    usual = _majority(issued)
    if usual is None:
        usual = _habit(instances, code, before, after)
    culprits = tuple(rank for rank, number in sorted(issued.items()) if number != usual)
    if 0 < len(culprits) < len(issued):
        calls = calls_until(timeline, before)
        last = {rank: _last(calls[rank], instances.channels[code], before) for rank in issued}
        others = numbers(sorted(issued.keys() - {*culprits}), "rank")
        odd = ", ".join(f"rank {rank} {issued[rank]:,}" for rank in culprits[:MAX_NAMED])
        yield Mismatch(
            calls=last,
            culprits=culprits,
            shifted=True,
            between=(max(call.step for call in last.values()), after),
            reference=f"{others} issued {usual:,} collectives, and {odd}",
        )


def _since(windows: Windows, before: int, after: int) -> set[int]:
    """How far the counts of the members have come."""
    return {seen.first - windows[before][rank].first for rank, seen in windows[after].items()}


def _majority(issued: Mapping[int, int]) -> int | None:
    ((number, votes),) = Counter(issued.values()).most_common(1)
    return number if votes > len(issued) / 2 else None


def _habit(instances: Instances, code: int, before: int, after: int) -> int | None:
    """Number of collectives in the steps between, if the steps around them all have the same number; otherwise None."""
    parts = instances.parts
    on_channel = (parts.channel == code) & (parts.step > parts.window)
    last = int(parts.step[on_channel & (parts.window == before)].max(initial=before))
    around = (parts.window == after) | ((parts.window == before) & (parts.step > last - HABIT_STEPS))
    chosen = on_channel & around
    _, each = np.unique(np.stack([parts.rank[chosen], parts.step[chosen]]), axis=1, return_counts=True)
    return int(each[0]) * (after - last - 1) if len({*each.tolist()}) == 1 else None


def _last(calls: RankCalls, channel: Channel, window: int) -> Call:
    """The last collective before the steps in which one is missing."""
    return [call for call in calls.calls if (call.channel, call.window) == (channel, window)][-1]
