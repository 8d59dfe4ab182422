"""Collectives that each rank issued in its latest windows, also those that did not end."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traincope.events import BLOCK_STEPS, NO_STEP, OPEN, Flag, Kind
from traincope.timeline import Channel, RankTimeline, Timeline
from traincope.timeline.collectives.channels import channels_of
from traincope.timeline.timeline import TRAINING_THREAD
from traincope.topology import Group

WINDOWS = 2
"""Number of each rank's latest windows that are read: the last one, and earlier steps to compare with."""
FLIGHT_WINDOW = -1
"""In place of a window: the count is torch's own, by its flight recorder."""
HABIT_STEPS = 2
"""Fewest equal steps that are a rank's habit."""
UNPLACED = -1
MAX_FLIGHT = 1_900
"""With more entries than this, torch's flight recorder may have dropped the older ones (it holds 2,000)."""

COLUMNS = ("group", "step", "window", "sequence", "name", "value", "peer", "tag", "start_ns", "end_ns", "flags")
RAISED, ASYNC = int(Flag.RAISED), int(Flag.ASYNC)

Identity = tuple[Channel, int, int]
"""Channel, window and count: the same on all members of the group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One rank's part in one collective or message."""

    rank: int
    channel: Channel
    window: int
    sequence: int
    operation: str
    num_bytes: int
    root: int
    step: int
    torch_count: int
    """Torch's own count on the group plus 1, at the first collective of a window; otherwise 0."""
    place: int
    """Position among the rank's calls on the channel in the same step; UNPLACED where a copy lacks the step's begin."""
    start_ns: int
    end_ns: int
    """OPEN without a recorded end."""
    raised: bool
    is_async: bool
    group: Group
    in_training_thread: bool
    message: int | None = None
    """Of a message between two ranks: its number on the channel since the run's begin; None if records are missing. A
    window begins with a step, and the step of a stage may begin only after it has received: counts within windows of
    two stages need not agree.
    """

    @property
    def identity(self) -> Identity:
        return self.channel, self.window, self.sequence

    @property
    def known_step(self) -> int | None:
        return None if self.step == NO_STEP else self.step

    @property
    def unfinished(self) -> bool:
        return self.end_ns == OPEN or self.raised

    @property
    def members(self) -> tuple[int, ...]:
        """Ranks that the call needs; empty if they are not known."""
        if self.channel.direct:
            pair = (self.channel.source, self.channel.destination)
            return pair if min(pair) >= 0 else ()
        return self.group.ranks


@dataclass(frozen=True)
class RankCalls:
    """The latest calls of one rank."""

    rank: RankTimeline
    calls: tuple[Call, ...]
    """The calls in order of their start."""
    waiting: frozenset[Identity]
    """Calls in whose wait the training thread was when its records end."""
    by_flight: bool = False
    """They are those of torch's flight recorder, and the recorded messages between two ranks."""
    messages: Mapping[Channel, int] | None = None
    """Channel of messages between two ranks -> their number since the run's begin; None if records are missing."""
    behind: frozenset[str] = frozenset()
    """Groups of which this rank issued a collective that is complete on other members, and not on its GPU."""

    @cached_property
    def latest(self) -> Mapping[Channel, tuple[int, int]]:
        """Channel -> window and count of the last call on it."""
        last: dict[Channel, tuple[int, int]] = {}
        for call in self.calls:
            last[call.channel] = max(last.get(call.channel, (-1, -1)), (call.window, call.sequence))
        return last

    @cached_property
    def outstanding(self) -> tuple[Call, ...]:
        """Unfinished calls, without those that a later completed call on their channel has overtaken."""
        completed: dict[Channel, tuple[int, int]] = {}
        for call in self.calls:
            if not call.unfinished:
                completed[call.channel] = max(completed.get(call.channel, (-1, -1)), (call.window, call.sequence))
        return tuple(
            call
            for call in self.calls
            if call.unfinished and (call.window, call.sequence) > completed.get(call.channel, (-1, -1))
        )

    @cached_property
    def departs(self) -> bool | None:
        """True if the last step, as far as it came, issues other collectives than the steps before it; or if the one
        before it issues other messages: a loop may begin its step late. None if the earlier steps differ among
        themselves, or are too few.
        """
        last, habit = self._last_steps
        return None if habit is None else last != habit[: len(last)]

    @cached_property
    def reorders(self) -> bool:
        """True if the last step departs by the order of its collectives alone, as far as it came."""
        last, habit = self._last_steps
        return bool(self.departs) and habit is not None and not Counter(last) - Counter(habit)

    @cached_property
    def _last_steps(self) -> tuple[list[tuple[Channel, str]], list[tuple[Channel, str]] | None]:
        """The collectives of the last step, and those of each step before it. If these differ, the last two steps, and
        twice those of each step before them, where only the messages of the last but one may differ: all joined its
        other collectives. None if these differ too, or are too few.
        """
        by_step: dict[int, list[tuple[Channel, str]]] = {}
        for call in self.calls:
            by_step.setdefault(call.step, []).append((call.channel, call.operation))
        in_order = [by_step[step] for step in sorted(by_step)]
        last: list[tuple[Channel, str]] = []
        for num_last in (1, 2):
            last = list(chain.from_iterable(in_order[-num_last:]))
            earlier = in_order[:-num_last][-HABIT_STEPS:]
            if len(earlier) < HABIT_STEPS or any(step != earlier[0] for step in earlier):
                continue
            if num_last == 1 or _of_groups(in_order[-2]) == _of_groups(earlier[0]):
                return last, num_last * earlier[0]
        return last, None

    @cached_property
    def windows(self) -> frozenset[int]:
        """Windows in which the rank certainly recorded its collectives."""
        steps = self.rank.main[(self.rank.main["kind"] == Kind.STEP) & (self.rank.main["flags"] & Flag.DETAILED > 0)]
        by_step = {step // BLOCK_STEPS * BLOCK_STEPS for step in steps["step"][-BLOCK_STEPS:].tolist()}
        has_steps = bool((self.rank.main["kind"] == Kind.STEP).any()) or self.rank.since_ns is not None
        before_steps = set() if has_steps else {0}
        return frozenset({call.window for call in self.calls} | by_step | before_steps)

    def joined(self, call: Call) -> bool | None:
        """True if the rank issued its part of another rank's call; None if its records do not show it."""
        if call.message is not None and self.messages is not None:
            return self.messages.get(call.channel, 0) > call.message
        if (call.window == FLIGHT_WINDOW) is not (self.by_flight and not call.channel.direct):
            return None  # their counts do not compare
        if self.latest.get(call.channel, (-1, -1)) >= (call.window, call.sequence):
            return True
        if self.by_flight:
            return False if call.channel in self.latest or len(self.calls) < MAX_FLIGHT else None
        if self.rank.since_ns is not None and call.start_ns < self.rank.since_ns:
            return None  # the copy holds nothing of that time
        step = self.rank.open_step
        if self.rank.ending is not None or call.window in self.windows or (step is not None and step < call.window):
            return False
        return None


def _of_groups(step: Sequence[tuple[Channel, str]]) -> list[tuple[Channel, str]]:
    """Leave out the messages between two ranks."""
    return [issued for issued in step if not issued[0].direct]


def latest_calls(timeline: Timeline) -> dict[int, RankCalls]:
    """Return the calls of each rank in its latest windows."""
    return {rank.rank: _rank_calls(rank, until=None) for rank in timeline.ranks}


def calls_until(timeline: Timeline, window: int) -> dict[int, RankCalls]:
    """Return the calls of each rank in this window and in the windows right before it."""
    return {rank.rank: _rank_calls(rank, until=window) for rank in timeline.ranks}


def _rank_calls(rank: RankTimeline, *, until: int | None) -> RankCalls:
    parts = {
        thread: records[(records["kind"] == Kind.COLLECTIVE) | (records["kind"] == Kind.STALL)]
        for thread, records in rank.threads.items()
    }
    windows = np.unique(np.concatenate([np.unique(records["window"]) for records in parts.values()]))
    windows = (windows if until is None else windows[windows <= until])[-WINDOWS:]
    recent = {thread: records[np.isin(records["window"], windows)] for thread, records in parts.items()}
    calls: list[Call] = []
    for thread, records in recent.items():
        calls += _calls(rank, records[records["kind"] == Kind.COLLECTIVE], thread=thread)
    calls.sort(key=lambda call: call.start_ns)
    messages = _messages_before(rank, parts, windows) if any(call.channel.direct for call in calls) else None
    if messages is not None:
        calls = [_numbered(call, messages) for call in calls]
    return RankCalls(rank, tuple(calls), frozenset(_waiting(rank, recent[TRAINING_THREAD])), messages=messages)


def _messages_before(
    rank: RankTimeline, parts: Mapping[str, NDArray[np.void]], windows: NDArray[np.integer[Any]]
) -> Counter[Channel] | None:
    """Number of the messages on each channel before these windows; None if not all steps have detail."""
    steps = rank.main[rank.main["kind"] == Kind.STEP]
    if rank.since_ns is not None or not len(steps) or not (steps["flags"] & Flag.DETAILED > 0).all():
        return None
    counts: Counter[Channel] = Counter()
    for records in parts.values():
        direct = (records["kind"] == Kind.COLLECTIVE) & (records["flags"] & Flag.POINT_TO_POINT > 0)
        channels, at = channels_of(rank, records[direct & ~np.isin(records["window"], windows)])
        counts.update({channel: int((at == number).sum()) for number, channel in enumerate(channels)})
    return counts


def _numbered(call: Call, messages: Counter[Channel]) -> Call:
    """The call with its number, if it is a message. Its channel's count goes on."""
    if not call.channel.direct:
        return call
    messages[call.channel] += 1
    return replace(call, message=messages[call.channel] - 1)


def _calls(rank: RankTimeline, records: NDArray[np.void], *, thread: str) -> Iterator[Call]:
    channels, at = channels_of(rank, records)
    counted: dict[tuple[Channel, int], int] = {}
    whole = _whole_steps(rank)
    columns = (at, *(records[name] for name in COLUMNS))
    rows = zip(*(column.tolist() for column in columns), strict=True)  # many times faster than field by field
    for number, group, step, window, sequence, name, num_bytes, root, torch_count, start_ns, end_ns, flags in rows:
        channel = channels[number]
        if group >= len(rank.groups):
            continue
        place = counted.get((channel, step), 0)
        counted[channel, step] = place + 1
        yield Call(
            rank=rank.rank,
            channel=channel,
            window=window,
            sequence=sequence,
            operation=rank.name(name),
            num_bytes=num_bytes,
            root=-1 if channel.direct else root,
            step=step,
            torch_count=0 if channel.direct else torch_count,
            place=place if whole is None or step in whole else UNPLACED,
            start_ns=start_ns,
            end_ns=end_ns,
            raised=bool(flags & RAISED),
            is_async=bool(flags & ASYNC),
            group=rank.groups[group],
            in_training_thread=thread == TRAINING_THREAD,
        )


def _whole_steps(rank: RankTimeline) -> frozenset[int] | None:
    """Steps of which a copy holds the begin; None: all, because the records are not a copy."""
    if rank.since_ns is None:
        return None
    steps = rank.of_kind(Kind.STEP)
    return frozenset(steps["step"][steps["start_ns"] >= rank.since_ns].tolist())


def _waiting(rank: RankTimeline, records: NDArray[np.void]) -> Iterator[Identity]:
    """Calls that an open stall waits for, or whose wait ended by an exception that ended the rank."""
    stalls = records[records["kind"] == Kind.STALL]
    ended = rank.ending is not None
    chosen = stalls[(stalls["end_ns"] == OPEN) | (ended & (stalls["flags"] & Flag.RAISED > 0))]
    channels, at = channels_of(rank, chosen)
    for record, number in zip(chosen, at.tolist(), strict=True):
        yield channels[number], int(record["window"]), int(record["sequence"])
