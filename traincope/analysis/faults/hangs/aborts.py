"""Mismatches that abort a rank inside gloo: the receiver of a message that is longer than it expects.

That rank leaves no flight recorder. If it received what the others always send, its own collective was another one:
then all other members of the group issued what they issued in their earlier steps. If a rank among them departed from
its habit, that one is named by its flight recorder (`mismatches.py`).
"""

from collections.abc import Iterator, Mapping

from traincope.analysis.faults.hangs.calls import Call, RankCalls
from traincope.analysis.faults.hangs.mismatches import Mismatch, as_before, form_of
from traincope.analysis.faults.stacks import Place, fatal_error, is_outside_of_python, place_of, training_thread
from traincope.timeline import Timeline
from traincope.timeline.evidence import waits_on_the_host

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
        if rank in group.ranks and others and (calls := _as_ever(others)):
            yield Mismatch(
                calls=calls,
                culprits=(rank,),
                shifted=False,
                reference=f"the others did the same as in their earlier steps, and rank {rank} aborted inside gloo",
            )
            return


def _aborted_inside(stacks: str) -> bool:
    """True if a thread of C++ aborted while the training communicated."""
    if fatal_error(stacks) != ABORTED or not is_outside_of_python(stacks):
        return False
    return place_of(training_thread(stacks)) in (Place.COMMUNICATION, Place.BACKWARD)


def _as_ever(members: list[RankCalls | None]) -> dict[int, Call]:
    """Rank -> its last call; empty unless all are by flight recorders, of one count and form, and none is unusual."""
    calls: dict[int, Call] = {}
    for each in members:
        if each is None or not each.by_flight or not each.calls:
            return {}
        last = each.calls[-1]
        if as_before(last, [call for call in each.calls if call.channel == last.channel]) is not True:
            return {}
        calls[each.rank.rank] = last
    return calls if len({(call.identity, form_of(call)) for call in calls.values()}) == 1 else {}
