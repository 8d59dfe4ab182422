"""Mismatches that abort a rank inside gloo: the receiver of a message that is longer than it expects.

That rank leaves no flight recorder, and the others do. If one of them departed from its habit, its message was too
long. If all issued what they issued in their earlier steps, the collective of the rank that aborted was another one.

Without a stack, an abort may have any cause. Then the rank must have departed from its habit in another way: its last
step lacks a phase that its earlier steps had, and that of the others has. It left none out if it aborted within a
phase, or where its records show that it did not communicate: it did not reach the rest of its step.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from signal import SIGABRT

from traincope.analysis.faults.hangs.evidence.calls import Call, RankCalls
from traincope.analysis.faults.hangs.mismatches import Mismatch, as_before, form_of
from traincope.analysis.faults.stacks import Place, fatal_error, is_outside_of_python, place_of, training_thread
from traincope.events import OPEN, Kind, Phase
from traincope.store.job.process import CRASHES
from traincope.timeline import RankTimeline, Timeline
from traincope.timeline.evidence import waits_on_the_host
from traincope.units import numbers

ABORTED = CRASHES[SIGABRT]
"""Name of SIGABRT in what `faulthandler` writes."""
LATEST_STEPS = 3
"""Number of earlier steps that show a habit."""


def aborted_mismatches(timeline: Timeline, flights: Mapping[int, RankCalls]) -> Iterator[Mismatch]:
    """The mismatch of the only rank that aborted in its communication; nothing if the others do not show it."""
    dumps = {rank.rank: rank.info.signals.get("fatal", "") for rank in timeline.run.ranks}
    aborted = {rank: stacks for rank, stacks in dumps.items() if fatal_error(stacks) == ABORTED}
    if len(aborted) != 1 or not waits_on_the_host(timeline.run.info.versions):
        return
    ((rank, stacks),) = aborted.items()
    where = _where(timeline, rank, stacks)
    if not where:
        return
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
                reference=f"rank {rank} aborted{where}, and {did} in earlier steps",
            )
            return


def with_aborted(timeline: Timeline, mismatch: Mismatch) -> Mismatch:
    """Decide a mismatch without a majority by the steps in which ranks aborted: each did what most others of its step
    did.
    """
    steps = {rank: call.step for rank, call in mismatch.calls.items()}
    dumps = {rank.rank: rank.info.signals.get("fatal", "") for rank in timeline.run.ranks}
    aborted = {
        rank.rank: rank.open_step
        for rank in timeline.ranks
        if rank.rank not in steps and fatal_error(dumps[rank.rank]) == ABORTED
    }
    joined = {**steps, **{rank: step for rank, step in aborted.items() if step is not None}}
    members = mismatch.first.group.ranks
    if mismatch.culprits or mismatch.shifted or not aborted or {*joined} != {*members}:
        return mismatch
    (common, votes), *_ = Counter(joined.values()).most_common(1)
    forms = {form_of(call) for rank, call in mismatch.calls.items() if steps[rank] == common}
    if votes <= len(members) / 2 or len(forms) != 1:
        return mismatch
    culprits = tuple(sorted(rank for rank, call in mismatch.calls.items() if form_of(call) not in forms))
    reason = f"{votes} of {len(members)} ranks were in step {common}; {numbers(sorted(aborted), 'rank')} aborted there"
    return replace(mismatch, culprits=culprits, reference=reason)


def _where(timeline: Timeline, rank: int, stacks: str) -> str:
    """Place of an abort that another collective explains; empty for any other."""
    if not training_thread(stacks):
        return _left_out(timeline, rank)
    return " inside gloo" if _is_inside(stacks) else ""


def _is_inside(stacks: str) -> bool:
    """True if a thread of C++ aborted while the training communicated."""
    return is_outside_of_python(stacks) and place_of(training_thread(stacks)) in (Place.COMMUNICATION, Place.BACKWARD)


def _left_out(timeline: Timeline, number: int) -> str:
    """The phase that the rank's open step lacks, e.g. " in a step without its backward"; empty without one."""
    last = {rank.rank: rank.open_step for rank in timeline.ranks}
    step = last[number]
    if step is None or {*last.values()} != {step} or _aborted_by_itself(timeline, number):
        return ""
    had = {rank.rank: _phases(rank) for rank in timeline.ranks}
    earlier = list(had[number].values())[-LATEST_STEPS - 1 : -1]
    elsewhere = [phases.get(step, set()) for rank, phases in had.items() if rank != number]
    usual = set.intersection(*earlier) if len(earlier) == LATEST_STEPS else set[int]()
    lacks = usual.intersection(*elsewhere) - had[number].get(step, set())
    names = {Phase.FORWARD: "forward", Phase.BACKWARD: "backward"}
    return next((f" in a step without its {name}" for phase, name in names.items() if phase in lacks), "")


def _aborted_by_itself(timeline: Timeline, number: int) -> bool:
    """True if the rank ended within a phase, or its records show that it did not communicate then."""
    rank = next(rank for rank in timeline.ranks if rank.rank == number)
    return rank.in_communication is False or bool((rank.of_kind(Kind.PHASE)["end_ns"] == OPEN).any())


def _phases(rank: RankTimeline) -> dict[int, set[int]]:
    """Step -> its phases, in order."""
    phases = rank.main[rank.main["kind"] == Kind.PHASE]
    found: dict[int, set[int]] = {}
    for step, phase in zip(phases["step"].tolist(), phases["phase"].tolist(), strict=True):
        found.setdefault(step, set()).add(phase)
    return dict(sorted(found.items()))


def _last_calls(members: Sequence[RankCalls | None]) -> dict[int, tuple[Call, list[Call]]]:
    """Rank -> its last call, and all its calls on the group. Empty unless all are by flight recorders, of one count."""
    calls: dict[int, tuple[Call, list[Call]]] = {}
    for each in members:
        if each is None or not each.by_flight or not each.calls:
            return {}
        last = each.calls[-1]
        calls[each.rank.rank] = last, [call for call in each.calls if call.channel == last.channel]
    return calls if len({last.identity for last, _ in calls.values()}) == 1 else {}
