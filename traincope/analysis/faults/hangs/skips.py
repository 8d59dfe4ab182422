"""Collectives that a rank left out, by torch's own counts at the begin of each window and at the end of the run.

All members of a group issue the same collectives, so from window to window torch's counts on the group grow alike. A
difference that stays in all later windows is a collective too few or too many. The majority is right. In a group of
two, it is the rank that issued as many in each step between as in the steps with detail.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from traincope.analysis.faults.hangs.evidence.calls import Call, RankCalls, calls_until
from traincope.analysis.faults.hangs.mismatches import Mismatch, ended_alike
from traincope.events import CLEAN, NO_STEP
from traincope.timeline import Channel, Instances, Timeline
from traincope.timeline.collectives.instances import groups_with_messages
from traincope.units import numbers

FIRST_STEPS = 3
"""First steps of a flight recorder, which may issue more, or of which it may have dropped some."""
MAX_NAMED = 4
MIN_WINDOWS = 2
"""Number of windows that show the difference, unless a rank ended badly: at one border, ranks may be at odds."""
MOST = 0.75
"""Share of steps with the same number of collectives that is a habit."""


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


def skipped_before_the_end(timeline: Timeline, flights: Mapping[int, RankCalls]) -> Iterator[Mismatch]:
    """Ranks that completed a step and ended well, with fewer collectives than the others, which wait in that step. The
    majority is right: if most ranks ended, those that wait issued too many.
    """
    issued = dict(_issued(timeline))
    last = {
        rank: each.calls[-1] for rank, each in flights.items() if rank not in issued and each.by_flight and each.calls
    }
    if not issued or len({call.identity for call in last.values()}) != 1:
        return
    call = next(iter(last.values()))
    counts = {rank: counts.get(call.channel.group) for rank, counts in issued.items()}
    complete = {rank.rank: max((step.number for step in rank.steps), default=NO_STEP) for rank in timeline.ranks}
    step = min(each.step for each in last.values())
    fewer = [rank for rank, number in counts.items() if number is not None and number < call.sequence]
    all_known = {*last, *issued} == {*call.group.ranks}
    if all_known and len(fewer) == len(counts) and NO_STEP < step <= min(complete[rank] for rank in fewer):
        issued_by = {**dict.fromkeys(last, call.sequence), **{rank: counts[rank] or 0 for rank in fewer}}
        usual = _majority(issued_by)
        if usual is None and all(_is_steady(flights[rank]) for rank in last):
            usual = call.sequence
        culprits = [rank for rank, number in sorted(issued_by.items()) if number != usual]
        if usual is None:
            return
        odd = ", ".join(f"rank {rank} {issued_by[rank]:,}" for rank in culprits[:MAX_NAMED])
        others = numbers(sorted(issued_by.keys() - {*culprits}), "rank")
        yield Mismatch(
            calls=last,
            culprits=tuple(culprits),
            shifted=True,
            between=(0, step),
            reference=f"{others} issued {usual:,} collectives, and {odd}",
        )


def _issued(timeline: Timeline) -> Iterator[tuple[int, dict[str, int]]]:
    """The ranks that ended well, with their counts at the end."""
    ended = {rank.rank for rank in timeline.ranks if rank.ending == CLEAN}
    for rank in timeline.run.ranks:
        if rank.rank in ended and rank.info.issued_collectives:
            yield rank.rank, rank.info.issued_collectives


def _is_steady(calls: RankCalls) -> bool:
    """True if the rank issued the same number in each of its latest steps, and not more in the last one."""
    by_step = Counter(call.step for call in calls.calls if call.channel == calls.calls[-1].channel)
    *latest, last = [by_step[step] for step in sorted(by_step)][FIRST_STEPS:] or [0]
    return len({*latest}) == 1 and last <= latest[0]


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
    with_messages = groups_with_messages(instances.channels, instances.operations, parts)
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
    if not lasting or (clean and len(differing) < MIN_WINDOWS) or ended_alike(timeline, instances.channels[code]):
        return
    before, after = order[-len(differing) - 1], differing[0]
    calls = calls_until(timeline, before)
    known = {rank: _known(calls[rank], instances.channels[code], before) for rank in windows[after]}
    since = max(call.step for call in known.values())
    issued = {rank: seen.first - _begun(windows[before][rank], before) for rank, seen in windows[after].items()}
    most = max(issued.values()) - min(issued.values())
    if most > max(after - since, 1) or _by_barriers(issued, next(iter(known.values()))):
        return  # more than one per step: torch counts there what not all members issue
    usual = _majority(issued)
    if usual is None:
        usual = _habit(instances, code, (before, after), steps=after - since - (not before))
    culprits = tuple(rank for rank, number in sorted(issued.items()) if number != usual)
    if 0 < len(culprits) < len(issued):
        others = numbers(sorted(issued.keys() - {*culprits}), "rank")
        odd = ", ".join(f"rank {rank} {issued[rank]:,}" for rank in culprits[:MAX_NAMED])
        yield Mismatch(
            calls=known,
            culprits=culprits,
            shifted=True,
            between=(since, after),
            reference=f"{others} issued {usual:,} collectives, and {odd}",
        )


def _by_barriers(issued: Mapping[int, int], call: Call) -> bool:
    """Return whether monitored barriers in steps without detail may make the difference: of each of them, the group's
    first rank receives and sends a message per other rank, and the others send and receive one.
    """
    first, *others = call.group.ranks
    extra = 2 * (len(others) - 1)
    same = len({issued[rank] for rank in others}) == 1
    more = issued[first] - issued[others[0]]
    return same and extra > 0 and more > 0 and more % extra == 0


def _begun(seen: _Seen, window: int) -> int:
    """The count from which on the ranks are compared: a training's first steps may issue more than the later ones."""
    return seen.first if window else seen.end


def _known(calls: RankCalls, channel: Channel, window: int) -> Call:
    """The call at that count."""
    inside = [call for call in calls.calls if (call.channel, call.window) == (channel, window)]
    return inside[0 if window else -1]


def _since(windows: Windows, before: int, after: int) -> set[int]:
    """Growth of the members' counts."""
    return {seen.first - windows[before][rank].first for rank, seen in windows[after].items()}


def _majority(issued: Mapping[int, int]) -> int | None:
    ((number, votes),) = Counter(issued.values()).most_common(1)
    return number if votes > len(issued) / 2 else None


def _habit(instances: Instances, code: int, around: tuple[int, int], *, steps: int) -> int | None:
    """Number of collectives in so many steps, by most of the steps of the windows around them; None without such."""
    parts = instances.parts
    chosen = (parts.channel == code) & (parts.step > parts.window) & np.isin(parts.window, around)
    _, each = np.unique(np.stack([parts.rank[chosen], parts.step[chosen]]), axis=1, return_counts=True)
    ((usual, votes), *_) = Counter(each.tolist()).most_common(1) or [(0, 0)]
    return usual * steps if votes > MOST * len(each) else None
