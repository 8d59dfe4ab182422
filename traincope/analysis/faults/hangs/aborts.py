"""Mismatches that abort a rank inside gloo: the receiver of a message that is longer than it expects.

That rank leaves no flight recorder, and the others do. If one of them departed from its habit, its message was too
long. If all issued what they issued in their earlier steps, the collective of the rank that aborted was another one.
"""

from collections.abc import Iterator, Mapping, Sequence

from traincope.analysis.faults.hangs.evidence.calls import Call, RankCalls
from traincope.analysis.faults.hangs.mismatches import Mismatch, as_before, form_of
from traincope.analysis.faults.stacks import Place, fatal_error, is_outside_of_python, place_of, training_thread
from traincope.timeline import Timeline
from traincope.timeline.evidence import waits_on_the_host
from traincope.units import numbers

ABORTED = "Aborted"
"""Name of SIGABRT in what `faulthandler` writes."""


def aborted_mismatches(timeline: Timeline, flights: Mapping[int, RankCalls]) -> Iterator[Mismatch]:
    """The mismatch of the only rank that aborted in its communication; nothing if the others do not show it."""
    aborted = [rank.rank for rank in timeline.run.ranks if _aborted_inside(rank.info.signals.get("fatal", ""))]
    if len(aborted) != 1 or not waits_on_the_host(timeline.run.info.versions):
        return
    (rank,) = aborted
    for group in {call.channel: call.group for each in flights.values() for call in each.calls[-1:]}.values():
        others = [flights.get(member) for member in group.ranks if member != rank]
        calls = _last_calls(others) if rank in group.ranks else {}
        usual = {number: as_before(call, own) for number, (call, own) in calls.items()}
        if not calls or None in usual.values():
            continue
        odd = tuple(number for number, same in usual.items() if not same)
        if odd or len({form_of(call) for call, _ in calls.values()}) == 1:
            did = f"{numbers(odd, 'rank')} did other than" if odd else "all others did the same as"
            yield Mismatch(
                calls={number: call for number, (call, _) in calls.items()},
                culprits=odd or (rank,),
                shifted=False,
                reference=f"rank {rank} aborted inside gloo, and {did} in earlier steps",
            )
            return


def _aborted_inside(stacks: str) -> bool:
    """True if a thread of C++ aborted while the training communicated."""
    if fatal_error(stacks) != ABORTED or not is_outside_of_python(stacks):
        return False
    return place_of(training_thread(stacks)) in (Place.COMMUNICATION, Place.BACKWARD)


def _last_calls(members: Sequence[RankCalls | None]) -> dict[int, tuple[Call, list[Call]]]:
    """Rank -> its last call, and all its calls on the group. Empty unless all are by flight recorders, of one count."""
    calls: dict[int, tuple[Call, list[Call]]] = {}
    for each in members:
        if each is None or not each.by_flight or not each.calls:
            return {}
        last = each.calls[-1]
        calls[each.rank.rank] = last, [call for call in each.calls if call.channel == last.channel]
    return calls if len({last.identity for last, _ in calls.values()}) == 1 else {}
