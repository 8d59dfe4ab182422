"""Mismatched collectives: the first count of a group at which its members disagree.

Members of a group issue the same collectives in the same order. So the n-th collective of all members has the same
operation, and the same bytes and root where the operator demands it. A skipped collective of equal form shifts one
member: from then on its n-th collective is in another step.

The majority is the reference. Without one, each member is compared with its own earlier steps, then with other groups
of the axis. If that decides nothing, all members are suspects.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.faults.hangs.evidence.calls import UNPLACED, Call, RankCalls, calls_until
from traincope.arrays import Ints
from traincope.events import CLEAN, NO_STEP, Flag, Kind, Phase
from traincope.timeline import Channel, Instances, RankTimeline, Timeline
from traincope.timeline.collectives.comparing import highest, lowest

SAME_BYTES = frozenset({"all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter"})
"""Operations with the same number of bytes on all members. An all-to-all, a gather or a scatter may differ."""
SAME_ROOT = frozenset({"broadcast", "reduce", "gather", "scatter"})
MIN_SHIFTED_STEPS = 2
"""Fewest complete steps, from the first unequal one on, that show a lasting difference."""
HABIT_STEPS = 4
"""Number of latest steps that show a habit. A training's first steps may differ, as DDP's do."""
MAX_WINDOWS = 8
"""Number of windows per group that are searched, the earliest first."""


class Form(NamedTuple):
    """The properties of a collective on which all members must agree."""

    operation: str
    num_bytes: int | None
    root: int | None

    def __str__(self) -> str:
        size = "" if self.num_bytes is None else f" of {self.num_bytes:,} bytes"
        return f"{self.operation}{size}{'' if self.root is None or self.root < 0 else f' with root {self.root}'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """One count at which members disagree."""

    calls: Mapping[int, Call]
    """Rank -> its call."""
    culprits: tuple[int, ...]
    """Empty if no reference decides."""
    shifted: bool
    """The forms are equal, and the steps differ."""
    reference: str
    """The reason for the culprits, or why there are none."""
    between: tuple[int, int] | None = None
    """It happened somewhere between these two steps; `calls` are the last ones before. None: `calls` disagree."""

    @property
    def first(self) -> Call:
        return min(self.calls.values(), key=lambda call: call.start_ns)


def form_of(call: Call) -> Form:
    return Form(
        call.operation,
        call.num_bytes if call.operation in SAME_BYTES else None,
        call.root if call.operation in SAME_ROOT else None,
    )


def mismatches(
    timeline: Timeline, instances: Instances, latest: Mapping[int, RankCalls], *, without: Collection[Channel] = ()
) -> Iterator[Mismatch]:
    """The first mismatch of each group, `without` some groups."""
    done = {*without}
    for channel, windows in _suspicious(instances).items():
        if channel in done:
            continue
        for window in windows:
            if not _may_disagree(timeline, channel, window):
                continue
            calls = calls_until(timeline, window)
            mismatch = _mismatch(calls, _by_channel(calls).get(channel, {}), window)
            if mismatch is not None:
                done.add(channel)
                if not (mismatch.shifted and ended_alike(timeline, channel)):
                    yield mismatch
                break
    yield from latest_mismatches(latest, without=done)


def latest_mismatches(latest: Mapping[int, RankCalls], *, without: Collection[Channel] = ()) -> Iterator[Mismatch]:
    """The first mismatch of each group among the latest calls of its members."""
    by_channel = _by_channel(latest)
    for channel in sorted(set(by_channel).difference(without)):
        yield from _latest_mismatch(latest, by_channel[channel])


def ended_alike(timeline: Timeline, channel: Channel) -> bool:
    """Return whether all ranks ended well, and torch counted equally many collectives on its members: then none was
    skipped, and a rank only counts its steps from other places, as where it leaves out an update.
    """
    members = [rank for rank in timeline.run.ranks if any(group.key == channel.group for group in rank.groups)]
    counts = {rank.info.issued_collectives.get(channel.group) for rank in members}
    return len(counts) == 1 and None not in counts and all(rank.ending == CLEAN for rank in timeline.ranks)


OnChannel = Mapping[int, Sequence[Call]]
"""Rank -> its calls on one channel, in order of start; only ranks that have any."""


def _by_channel(ranks: Mapping[int, RankCalls]) -> Mapping[Channel, OnChannel]:
    """Sort the calls of groups by channel."""
    found: dict[Channel, dict[int, list[Call]]] = defaultdict(lambda: defaultdict(list))
    for rank, calls in ranks.items():
        for call in calls.calls:
            if not call.channel.direct:
                found[call.channel][rank].append(call)
    return found


def _latest_mismatch(latest: Mapping[int, RankCalls], on_channel: OnChannel) -> Iterator[Mismatch]:
    for window in sorted({call.window for calls in on_channel.values() for call in calls}):
        mismatch = _mismatch(latest, on_channel, window)
        if mismatch is not None:
            yield mismatch
            return


def _suspicious(instances: Instances) -> dict[Channel, list[int]]:
    """Channel -> the first windows in which completed collectives have differing forms or steps."""
    parts, number, count = instances.parts, instances.number, len(instances)
    if not count:
        return {}
    same_bytes = np.array([name in SAME_BYTES for name in instances.operations], dtype=bool)[parts.operation_code]
    differ = np.zeros(count, dtype=bool)
    for values in (parts.operation_code, parts.step, np.where(same_bytes, parts.num_bytes, 0)):
        differ |= lowest(values, number, count) != highest(values, number, count)
    windows: dict[Channel, list[int]] = defaultdict(list)
    num_windows = int(instances.window.max()) + 1
    for place in np.unique(instances.channel[differ] * num_windows + instances.window[differ]).tolist():
        code, window = divmod(place, num_windows)
        channel = instances.channels[code]
        if not channel.direct and len(windows[channel]) < MAX_WINDOWS:
            windows[channel].append(window)
    return windows


def _may_disagree(timeline: Timeline, channel: Channel, window: int) -> bool:
    """False if `_mismatch` finds none for certain. It reads columns, so it is many times faster than with calls."""
    issued = [(rank, records) for rank in timeline.ranks if len(records := _issued(rank, channel, window))]
    if len(issued) < 2:
        return False
    common = max(int(records["sequence"].min()) for _, records in issued)
    issued = [(rank, records[records["sequence"] >= common]) for rank, records in issued]
    joined = np.concatenate([records for _, records in issued])
    names: dict[str, int] = {}
    operation = np.concatenate([_numbered_names(rank, records, names) for rank, records in issued])
    same_bytes, same_root = (
        np.array([name in chosen for name in names], dtype=bool)[operation] for chosen in (SAME_BYTES, SAME_ROOT)
    )
    forms = (operation, np.where(same_bytes, joined["value"], 0), np.where(same_root, joined["peer"], 0))
    if any(_differ(values, joined["sequence"] - common) for values in forms):
        return True
    within = [(records["sequence"].astype(np.int64), records["step"].astype(np.int64)) for _, records in issued]
    return _differ(joined["step"], joined["sequence"] - common) and _first_shift(within) is not None


def _issued(rank: RankTimeline, channel: Channel, window: int) -> NDArray[np.void]:
    """Collectives of the rank on the channel in this window, in order of start."""
    numbers = [
        at
        for at, group in enumerate(rank.groups)
        if (group.key, rank.observation) == (channel.group, channel.observation)
    ]
    parts = [
        records[
            (records["kind"] == Kind.COLLECTIVE)
            & (records["window"] == window)
            & np.isin(records["group"], numbers)
            & (records["flags"] & Flag.POINT_TO_POINT == 0)
        ]
        for records in rank.threads.values()
    ]
    joined = np.concatenate(parts)
    in_order: NDArray[np.void] = joined[np.argsort(joined["start_ns"], kind="stable")]
    return in_order


def _numbered_names(rank: RankTimeline, records: NDArray[np.void], numbers: dict[str, int]) -> Ints:
    """Number of each record's operation. New names get the next number in `numbers`."""
    distinct, at = np.unique(records["name"], return_inverse=True)
    of_distinct = [numbers.setdefault(rank.name(name), len(numbers)) for name in distinct.tolist()]
    return np.array(of_distinct, dtype=np.int64)[at]


def _differ(values: NDArray[Any], number: NDArray[np.uint32]) -> bool:
    """True if two values of one number differ."""
    count, at = int(number.max()) + 1, number.astype(np.int32)
    return bool((lowest(values, at, count) != highest(values, at, count))[np.unique(at)].any())


def _mismatch(ranks: Mapping[int, RankCalls], on_channel: OnChannel, window: int) -> Mismatch | None:
    """The first disagreement of a channel's members in a window."""
    within = {rank: [call for call in calls if call.window == window] for rank, calls in on_channel.items()}
    if not _counts_alike(on_channel, window) or len(within) < 2:
        return None
    common = max(min((call.sequence for call in calls), default=0) for calls in within.values())
    within = {rank: [call for call in calls if call.sequence >= common] for rank, calls in within.items()}
    by_count: dict[int, dict[int, Call]] = defaultdict(dict)
    for rank, calls in within.items():
        for call in calls:
            by_count[call.sequence][rank] = call
    in_order = [by_count[count] for count in sorted(by_count)]
    differing = next((calls for calls in in_order if len({form_of(call) for call in calls.values()}) > 1), None)
    moved = next((calls for calls in in_order if len({call.step for call in calls.values()}) > 1), None)
    columns = [(_column(calls, "sequence"), _column(calls, "step")) for calls in within.values()]
    shift = _first_shift(columns)
    before_forms = differing is None or shift is None or shift < min(call.step for call in differing.values())
    if shift is not None and moved is not None and before_forms:
        return _by_step(shift, moved, ranks, within)
    return None if differing is None else _by_form(differing, ranks, on_channel)


def _column(calls: Sequence[Call], name: str) -> Ints:
    return np.array([getattr(call, name) for call in calls], dtype=np.int64)


def _first_shift(within: Sequence[tuple[Ints, Ints]]) -> int | None:
    """The first step up to which members issued different numbers, if the difference stays in all steps after it.

    `within`: counts and steps of each member's collectives, in order of start. A difference that a later step evens out
    is a border that members see apart, or a step that is not known exactly. A difference from the first step on is such
    a border too. None if records are missing: their steps are not known.
    """
    if any(len(counts) != counts[-1] - counts[0] + 1 for counts, _ in within if len(counts)):
        return None
    last = min(int(steps.max(initial=NO_STEP)) for _, steps in within)
    distinct = np.unique(np.concatenate([steps for _, steps in within]))
    distinct = distinct[(distinct > NO_STEP) & (distinct < last)]
    issued = np.stack([np.searchsorted(np.sort(steps), distinct, side="right") for _, steps in within])
    differ = (issued != issued[0]).any(axis=0)
    if differ[:1].any():
        return None
    equal = np.flatnonzero(~differ)
    last_equal = int(equal[-1]) if len(equal) else -1
    return int(distinct[last_equal + 1]) if len(distinct) - last_equal > MIN_SHIFTED_STEPS else None


def _counts_alike(on_channel: Mapping[int, Sequence[Call]], window: int) -> bool:
    """False if members began to count at different collectives in this window, by torch's own counts.

    Torch's counts may differ from the beginning. So their growth since the window before counts, if it is known.
    """
    counts = set()
    for calls in on_channel.values():
        first = {call.window: call.torch_count for call in calls if call.torch_count}
        if window in first:
            before = first[min(first)] if min(first) < window else 0
            counts.add((min(first), first[window] - before))
    return len(counts) <= 1


def _by_form(
    calls: Mapping[int, Call], ranks: Mapping[int, RankCalls], on_channel: Mapping[int, Sequence[Call]]
) -> Mismatch:
    forms = {rank: form_of(call) for rank, call in calls.items()}
    (common, votes), *_ = Counter(forms.values()).most_common(1)
    if votes > (len(forms) + _num_unseen(calls, ranks)) / 2:
        culprits = tuple(sorted(rank for rank, form in forms.items() if form != common))
        reason = f"{votes} of {len(forms)} ranks agree"
        return Mismatch(calls=calls, culprits=culprits, shifted=False, reference=reason)
    unchanged = {rank: as_before(call, on_channel[rank]) for rank, call in calls.items()}
    changed = tuple(sorted(rank for rank, same in unchanged.items() if same is False))
    if changed and len(changed) < len(calls) and None not in unchanged.values():
        kept = sorted(rank for rank, same in unchanged.items() if same)
        if len({forms[rank] for rank in kept}) == 1:
            reason = "the others did the same as in their earlier steps"
            return Mismatch(calls=calls, culprits=changed, shifted=False, reference=reason)
    sister = _sister_form(calls, ranks)
    odd = tuple(sorted(rank for rank, form in forms.items() if form != sister))
    if sister is not None and 0 < len(odd) < len(calls):
        reason = "the other groups of the axis agree with the others"
        return Mismatch(calls=calls, culprits=odd, shifted=False, reference=reason)
    return Mismatch(calls=calls, culprits=(), shifted=False, reference="no majority and no earlier step decides")


def _num_unseen(calls: Mapping[int, Call], ranks: Mapping[int, RankCalls]) -> int:
    """Members of the group without any records. They may agree with the minority of the others."""
    return len({*next(iter(calls.values())).group.ranks} - {*ranks})


def as_before(call: Call, own: Sequence[Call]) -> bool | None:
    """True if the call has the form of the rank's calls at this place of its latest steps; None if these differ."""
    if call.place == UNPLACED:
        return None
    earlier = [each for each in own if each.step < call.step and each.place == call.place][-HABIT_STEPS:]
    forms = {form_of(each) for each in earlier}
    return form_of(call) in forms if len(forms) == 1 else None


def _sister_form(calls: Mapping[int, Call], ranks: Mapping[int, RankCalls]) -> Form | None:
    """The form of the same count in the other groups of the axis; None if they differ or there are none."""
    example = next(iter(calls.values()))
    forms = {
        form_of(call)
        for each in ranks.values()
        for call in each.calls
        if call.channel != example.channel
        and not call.channel.direct
        and call.group.axis == example.group.axis
        and (call.window, call.sequence) == (example.window, example.sequence)
    }
    return forms.pop() if len(forms) == 1 else None


def _by_step(
    step: int,
    calls: Mapping[int, Call],
    ranks: Mapping[int, RankCalls],
    within: Mapping[int, Sequence[Call]],
) -> Mismatch | None:
    """Name the ranks that issued another number in the step; None if an extra step border explains the shift.

    `calls`: the first that are of different steps.
    """
    counts = {rank: sum(call.step == step for call in within[rank]) for rank in calls}
    (common, votes), *_ = Counter(counts.values()).most_common(1)
    reason = f"{votes} of {len(counts)} ranks issued {common} in step {step}"
    if votes <= (len(counts) + _num_unseen(calls, ranks)) / 2:
        before = {rank: [call for call in within[rank] if call.step == step - 1] for rank in calls}
        earlier = {len(issued) for issued in before.values()}
        cut = any(call.place == UNPLACED for issued in before.values() for call in issued)
        if len(earlier) != 1 or 0 in earlier or cut:
            return Mismatch(calls=calls, culprits=(), shifted=True, reference="no earlier step decides")
        (common,) = earlier
        reason = f"every rank issued {common} in step {step - 1}"
    culprits = tuple(sorted(rank for rank, issued in counts.items() if issued != common))
    if not culprits or not all(_trained(ranks[rank].rank, step) for rank in culprits):
        return None
    return Mismatch(calls=calls, culprits=culprits, shifted=True, reference=reason)


def _trained(rank: RankTimeline, step: int) -> bool:
    """True if the rank ran a backward in the step. A step without one may be an extra step border."""
    records = rank.of_kind(Kind.PHASE)
    return bool(((records["phase"] == Phase.BACKWARD) & (records["step"] == step)).any())
