"""Calls of each rank by torch's flight recorder, which also covers steps without detail.

Messages between two ranks are those that were recorded: torch counts them otherwise, and of gloo it has none.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.faults.hangs.evidence.calls import FLIGHT_WINDOW, Call, RankCalls
from traincope.events import CLEAN, NO_STEP, OPEN, Kind
from traincope.store.job.flight import Flight, FlightEntry
from traincope.store.segments.segments import own_work
from traincope.timeline import Channel, RankTimeline, Timeline
from traincope.timeline.clocks.clocks import RankClock
from traincope.timeline.device.collectives import MESH
from traincope.timeline.evidence import FROM_ALL_TO_ALL
from traincope.topology import Group

ITEM_BYTES = {
    **dict.fromkeys(("Double", "Long", "ComplexFloat"), 8),
    **dict.fromkeys(("Float", "Int"), 4),
    **dict.fromkeys(("Half", "BFloat16", "Short"), 2),
}
"""torch's name of a type -> bytes; 1 for all others."""
NEIGHBOURS = 8
"""Records of both clocks, on either side, that an offset is compared with. They are a second apart."""
SET_NS = 1_000_000_000
"""A larger difference between neighbours means that the wall clock was set."""
WORLD = "0"
"""torch's name of the group of all ranks."""
UNNAMED = ("", "undefined")
"""Descriptions of groups that the training did not name."""


def flight_calls(timeline: Timeline, recorded: Mapping[int, RankCalls]) -> dict[int, RankCalls] | None:
    """The calls of each rank whose flight recorder was read after its last record, and the `recorded` ones of all
    other ranks. None if no rank's was.
    """
    clocks = {clock.rank: clock for clock in timeline.clocks}
    flights = {
        rank.rank: flight
        for rank in timeline.run.ranks
        if rank.rank in recorded
        and rank.flight is not None
        and (flight := rank.flight.read()) is not None
        and _is_fresh(flight, recorded[rank.rank].rank, clocks)
    }
    if not flights:
        return None
    groups = _groups(timeline, flights)
    first, furthest = _first_common(flights), _furthest(flights)
    unsized = frozenset(
        (entry.group, entry.sequence)
        for flight in flights.values()
        for entry in flight.entries
        if entry.num_elements is None
    )
    made = {
        number: RankCalls(
            recorded[number].rank,
            tuple(
                _with_messages(
                    _calls(recorded[number].rank, flight, groups, first, furthest, unsized=unsized), recorded[number]
                )
            ),
            frozenset(identity for identity in recorded[number].waiting if identity[0].direct),
            by_flight=True,
            messages=recorded[number].messages,
            behind=frozenset(entry.group for entry in flight.entries if _is_left_behind(entry, furthest)),
        )
        for number, flight in flights.items()
    }
    return {**recorded, **made}


def _with_messages(calls: Iterable[Call], recorded: RankCalls) -> list[Call]:
    direct = (call for call in recorded.calls if call.channel.direct)
    return sorted((*calls, *direct), key=lambda call: call.start_ns)


def _is_fresh(flight: Flight, rank: RankTimeline, clocks: Mapping[int, RankClock]) -> bool:
    """True if the rank began nothing by itself after it. A run that ends by an exception still notes that after it."""
    clock = clocks.get(rank.rank)
    at_ns = flight.at_ns if clock is None else int(clock.on_axis(np.array([flight.at_ns]))[0])
    began = own_work(rank.main, raised=rank.ending not in (None, CLEAN))["start_ns"]
    return at_ns >= int(began.max(initial=0))


def _groups(timeline: Timeline, flights: Mapping[int, Flight]) -> dict[str, Group]:
    """Groups by torch's name. One that no record has is called by its name."""
    ranks = {name: ranks for flight in flights.values() for name, ranks in flight.groups.items() if ranks}
    known = {group.key: group for rank in timeline.ranks for group in rank.groups}
    used = {entry.group for flight in flights.values() for entry in flight.entries}
    everyone = tuple(range(timeline.run.info.world_size))
    unlisted = {name: everyone if name == WORLD else _seen(name, flights) for name in used}
    texts = {name: text for flight in flights.values() for name, text in flight.descriptions.items()}
    return {
        name: known.get(name) or _unrecorded(name, ranks.get(name, unlisted[name]), texts.get(name, ""))
        for name in used
    }


def _seen(name: str, flights: Mapping[int, Flight]) -> tuple[int, ...]:
    """Ranks that issued something on a group. torch's dumps of gloo do not list the members."""
    return tuple(
        rank for rank, flight in sorted(flights.items()) if any(entry.group == name for entry in flight.entries)
    )


def _is_left_behind(entry: FlightEntry, furthest: Mapping[str, int]) -> bool:
    """Return whether a rank's GPU did not complete what that of another member did. So all members had joined it."""
    is_of_all = _operation(entry) in FROM_ALL_TO_ALL
    return is_of_all and not entry.complete and entry.sequence <= furthest.get(entry.group, -1)


def _unrecorded(name: str, ranks: tuple[int, ...], description: str) -> Group:
    named = description if description not in UNNAMED else f"group {name}"
    axis = "world" if name == WORLD else named.removeprefix(MESH)
    return Group(number=0, key=name, axis=axis, rule="none", ranks=ranks)


def _first_common(flights: Mapping[int, Flight]) -> dict[str, int]:
    """Group -> first count that every rank's recorder still holds. It keeps a limited number of entries."""
    first: dict[str, int] = {}
    for flight in flights.values():
        held: dict[str, int] = {}
        for entry in flight.entries:
            held.setdefault(entry.group, entry.sequence)
        first = {group: max(first.get(group, 0), held.get(group, 0)) for group in {*first, *held}}
    return first


def _furthest(flights: Mapping[int, Flight]) -> dict[str, int]:
    """Group -> last collective that the GPU of some member completed."""
    last: dict[str, int] = {}
    for flight in flights.values():
        if flight.on_device:
            last = {
                name: max(last.get(name, -1), flight.completed.get(name, -1)) for name in {*last, *flight.completed}
            }
    return last


def _operation(entry: FlightEntry) -> str:
    return entry.operation.removeprefix("_").removesuffix("_base")


def _calls(
    rank: RankTimeline,
    flight: Flight,
    groups: Mapping[str, Group],
    first: Mapping[str, int],
    furthest: Mapping[str, int],
    *,
    unsized: Collection[tuple[str, int]],
) -> Iterator[Call]:
    """What is complete on another member is no wait for any of them, and counts as complete.

    `unsized`: groups and numbers of collectives whose size some member does not state. Those of others cannot differ.
    """
    entries = [entry for entry in flight.entries if entry.sequence >= first.get(entry.group, 0)]
    times_ns = _on_axis(rank, np.array([entry.created_wall_ns for entry in entries], dtype=np.int64))
    counted: dict[tuple[str, int], int] = {}
    for entry, step, start_ns in zip(entries, _steps(rank, times_ns), times_ns.tolist(), strict=True):
        place = counted.get((entry.group, step), 0)
        counted[entry.group, step] = place + 1
        yield Call(
            rank=rank.rank,
            channel=Channel(entry.group),
            window=FLIGHT_WINDOW,
            sequence=entry.sequence,
            operation=_operation(entry),
            num_bytes=0
            if (entry.group, entry.sequence) in unsized
            else (entry.num_elements or 0) * ITEM_BYTES.get(entry.dtype, 1),
            root=-1,
            step=step,
            torch_count=0,
            place=place,
            start_ns=start_ns,
            end_ns=0 if entry.complete or _is_left_behind(entry, furthest) else OPEN,
            raised=False,
            is_async=True,
            group=groups[entry.group],
            in_training_thread=False,
        )


def _on_axis(rank: RankTimeline, walls_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Convert wall times by the rank's latest record of both clocks that is not after each of them.

    The wall clock may be set, also back: of two records that fit, the later one holds for the last collectives.
    """
    clocks = rank.of_kind(Kind.CLOCK)
    if not len(clocks):
        return walls_ns
    offsets_ns = _exact(clocks["start_ns"] - clocks["value"])
    lowest_from_here = np.minimum.accumulate(clocks["value"][::-1])[::-1]
    at = np.maximum(np.searchsorted(lowest_from_here, walls_ns, side="right") - 1, 0)
    return walls_ns + offsets_ns[at]


def _exact(offsets_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """The largest of the neighbouring offsets that the wall clock was not set between.

    A record reads the wall clock last. A thread that loses its processor in between reads it too late, by up to 0.1 s
    on a busy host, and never too early.
    """
    exact = offsets_ns.copy()
    for shift in range(-NEIGHBOURS, NEIGHBOURS + 1):
        near = offsets_ns[np.clip(np.arange(len(offsets_ns)) + shift, 0, len(offsets_ns) - 1)]
        exact = np.where(np.abs(near - offsets_ns) < SET_NS, np.maximum(exact, near), exact)
    return exact


def _steps(rank: RankTimeline, times_ns: NDArray[np.int64]) -> list[int]:
    """The step that the rank was in at each time."""
    steps = rank.of_kind(Kind.STEP)
    numbers = np.concatenate([[NO_STEP], steps["step"].astype(np.int64)])
    return list(map(int, numbers[np.searchsorted(steps["start_ns"], times_ns, side="right")]))
