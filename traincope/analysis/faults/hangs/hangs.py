"""All hangs and mismatched collectives of a run, the first cause first."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from traincope.analysis.confidence import HIGH, MEDIUM, UNKNOWN
from traincope.analysis.faults.endings import endings
from traincope.analysis.faults.faults import Fault, FaultKind
from traincope.analysis.faults.hangs.aborts import aborted_mismatches, with_aborted
from traincope.analysis.faults.hangs.busy import busy_until_a_timeout
from traincope.analysis.faults.hangs.evidence.calls import RankCalls, latest_calls
from traincope.analysis.faults.hangs.evidence.flights import flight_calls
from traincope.analysis.faults.hangs.evidence.patience import patience
from traincope.analysis.faults.hangs.evidence.standing import Standing, standing
from traincope.analysis.faults.hangs.hang import Differs, Hang, HangKind
from traincope.analysis.faults.hangs.lost import stops_for_lost_hosts
from traincope.analysis.faults.hangs.mismatches import Mismatch, form_of, latest_mismatches, mismatches
from traincope.analysis.faults.hangs.noticed import noticed_hang, stops_that_ended_the_job, with_noticed
from traincope.analysis.faults.hangs.sentences import sides
from traincope.analysis.faults.hangs.skips import skipped_before_the_end, skipped_between_windows
from traincope.analysis.faults.hangs.stops import stops
from traincope.analysis.faults.hangs.testimony import with_testimony
from traincope.analysis.faults.hangs.unmade_groups import unmade_group
from traincope.analysis.faults.lost_hosts import LostHost, lost_hosts
from traincope.events import CLEAN, NO_STEP
from traincope.store.job.hang_notices import StopState
from traincope.timeline import Instances, Timeline, match_instances, timelines_of_compared, with_copies
from traincope.timeline.evidence import waits_on_the_host

CERTAIN = frozenset({HangKind.MISMATCH, HangKind.DEADLOCK, HangKind.LOST_HOST})
"""Stops that do not end by themselves."""
MIN_MAJORITY = 3
"""Members from which a majority alone is high confidence."""


def hangs(timeline: Timeline, instances: Instances, ends: Sequence[Fault]) -> tuple[Hang, ...]:
    """Find the hangs and mismatches. Mismatches come first: they explain the stops after them.

    Where the records do not name a culprit and its collective, torch's flight recorder may. Witness copies stand for
    ranks without records, unless their host was lost. Where neither does, the answer that an agent gave during the hang
    does.

    `instances` and `ends` are of the same timeline. On GPUs the host sees waits only indirectly, so confidence is at
    most medium there.
    """
    if not timeline.ranks:
        return ()
    recorded, recorded_ends = timeline, ends
    noticed = noticed_hang(recorded)
    lost = [host for host in lost_hosts(recorded) if host.confidence != UNKNOWN and not _follows(host, noticed)]
    timeline = with_copies(recorded, without=[rank for host in lost for rank in host.ranks])
    ends = recorded_ends if timeline is recorded else endings(timeline)
    latest = latest_calls(timeline) if _may_have_stopped(timeline) else {}
    between = tuple(_between_hosts(recorded))
    exact = mismatches(recorded, instances, latest, without={mismatch.first.channel for mismatch in between})
    unequal = tuple(_with_skips(recorded, instances, (*between, *exact)))
    result = _found(timeline, latest, ends, unequal)
    if latest and not (result and all(hang.culprits and hang.collective for hang in result)):
        flights = flight_calls(timeline, latest)
        if flights is not None:
            unequal = (
                tuple(with_aborted(timeline, mismatch) for mismatch in latest_mismatches(flights))
                or tuple(aborted_mismatches(timeline, flights))
                or tuple(skipped_before_the_end(timeline, flights))
            )
            again = _found(timeline, flights, ends, unequal)
            result = max(again, result, key=_known)
    result = result if waits_on_the_host(timeline.run.info.versions) else tuple(map(_at_most_medium, result))
    if not any(hang.culprits for hang in result):
        unmade = unmade_group(recorded, latest, recorded_ends) if latest else None
        result = (unmade,) if unmade else tuple(busy_until_a_timeout(recorded, recorded_ends)) or result
    certain = any(hang.stopped and hang.confidence == HIGH for hang in result)
    explained = () if certain or not lost else tuple(stops_for_lost_hosts(timeline, ends, lost))
    result = explained or tuple(replace(hang, host=_host_of(timeline, hang.culprits)) for hang in result)
    result = tuple(with_testimony(timeline, hang) for hang in with_noticed(result, noticed))
    result = result or tuple(stops_that_ended_the_job(recorded))
    if not any(hang.stopped for hang in result):
        return result
    limit_ns, ended = patience(recorded).hang_ns, _ended_in_it(recorded_ends)
    known = () if noticed is None or noticed.state is not StopState.HANG else noticed.culprits
    return tuple(
        replace(hang, state=_state(hang, limit_ns=limit_ns, ended=ended or (bool(known) and hang.culprits == known)))
        for hang in result
    )


def _state(hang: Hang, *, limit_ns: int, ended: bool) -> StopState:
    """Return STALL for a stop that may end by itself: it has lasted for less than `limit_ns`, the job did not end in it
    (`ended`), and no evidence shows that it cannot.
    """
    lasted_ns = hang.lasted_ns or 0  # 0: the time is not known, as in imported dumps
    certain = hang.cannot_go_on is not None or hang.kind in CERTAIN
    return StopState.HANG if certain or ended or not 0 < lasted_ns < limit_ns else StopState.STALL


def _ended_in_it(ends: Sequence[Fault]) -> bool:
    """True if ranks ended, and nothing outside of the job ended them."""
    return any(end.is_fault for end in ends) and not any(end.kind is FaultKind.STOPPED for end in ends)


def _follows(host: LostHost, noticed: Hang | None) -> bool:
    """True if the host still answered after the culprit of the hang was known."""
    return noticed is not None and noticed.until_ns is not None and host.heard_ns > noticed.until_ns


def completed_mismatches(timeline: Timeline) -> Iterator[Mismatch]:
    """Mismatches of collectives that completed, in copies of ranks' records."""
    instances = match_instances(timeline)
    yield from _with_skips(timeline, instances, tuple(mismatches(timeline, instances, {})))


def _with_skips(timeline: Timeline, instances: Instances, exact: Sequence[Mismatch]) -> Iterator[Mismatch]:
    """These mismatches, and the skips between windows that none of them explains."""
    yield from exact
    for skip in skipped_between_windows(timeline, instances):
        same = (mismatch for mismatch in exact if mismatch.first.channel == skip.first.channel)
        if skip.between is None or all(mismatch.first.step > skip.between[1] for mismatch in same):
            yield skip


def _between_hosts(timeline: Timeline) -> Iterator[Mismatch]:
    """Mismatches that agents saw between ranks of several hosts. Complete records show them by themselves."""
    if timeline.run.missing:
        for compared in timelines_of_compared(timeline.run):
            yield from completed_mismatches(compared)


def _host_of(timeline: Timeline, ranks: Sequence[int]) -> str | None:
    """Name of the host of all these ranks; None if there is none."""
    names = {rank.info.host.name for rank in timeline.run.ranks if rank.rank in ranks}
    return names.pop() if len(names) == 1 else None


def _found(
    timeline: Timeline, latest: Mapping[int, RankCalls], ends: Sequence[Fault], unequal: Sequence[Mismatch]
) -> tuple[Hang, ...]:
    """All by one source of calls. A mismatch explains the stop after it."""
    standings = standing(timeline, latest)
    stopped = tuple(stops(timeline, standings, ends)) if latest else ()
    first = min(unequal, key=lambda mismatch: mismatch.first.start_ns, default=None)
    result = stopped if first is None else tuple(_explained(first, stopped, standings))
    return tuple(replace(hang, noticed_ns=_noticed_ns(hang, standings)) for hang in result)


def _known(result: Sequence[Hang]) -> tuple[bool, bool, bool]:
    """How much is known: whether there are culprits or certainly none, suspects, any hang at all."""
    decided = any(hang.culprits or hang.kind is HangKind.NONE_COMPLETES for hang in result)
    return decided, any(hang.suspects for hang in result), bool(result)


def _may_have_stopped(timeline: Timeline) -> bool:
    """False if all ranks completed their run, and while they run without a look at them: their last calls are then only
    not over yet.
    """
    endings = {rank.ending for rank in timeline.ranks}
    return endings != {CLEAN} and (endings != {None} or any(rank.looks for rank in timeline.run.ranks))


def run_end_ns(timeline: Timeline, result: Sequence[Hang]) -> int:
    """End of the run: its last record, or the latest certain instant of a hang after it."""
    return max([timeline.end_ns, *(hang.until_ns for hang in result if hang.until_ns is not None)])


def _noticed_ns(hang: Hang, standings: Mapping[int, Standing]) -> int | None:
    looks = (each.noticed_ns for each in standings.values())
    return min((at_ns for at_ns in looks if at_ns is not None and at_ns >= hang.since_ns), default=None)


def _explained(mismatch: Mismatch, stopped: Sequence[Hang], standings: Mapping[int, Standing]) -> Iterator[Hang]:
    """The first mismatch. Later mismatches and stops follow from it."""
    call, culprits = mismatch.first, mismatch.culprits
    step = NO_STEP if mismatch.between else min(each.step for each in mismatch.calls.values())
    suspects = () if culprits else tuple(sorted(mismatch.calls))
    until_ns = max((hang.until_ns for hang in stopped if hang.until_ns is not None), default=None)
    involved = {rank for hang in stopped for rank in (*hang.victims, *hang.culprits, *hang.suspects)}
    victims = involved | set(mismatch.calls)
    culprit = standings.get(culprits[0]) if culprits else None
    waits_there = culprit is not None and any(each.identity == call.identity for each in culprit.waits)
    yield Hang(
        kind=HangKind.MISMATCH,
        culprits=culprits,
        suspects=suspects,
        victims=tuple(sorted(victims - set(culprits) - set(suspects))),
        group=call.channel.group,
        axis=call.group.axis,
        collective=call.operation,
        step=None if step == NO_STEP else step,
        call_site=culprit.site if culprit is not None and waits_there else None,
        stack=tuple(map(str, culprit.frames)) if culprit is not None and waits_there else (),
        doing=f"in {mismatch.calls[culprits[0]].operation}" if {*culprits[:1]} & {*mismatch.calls} else None,
        since_ns=max(each.start_ns for each in mismatch.calls.values()),
        until_ns=until_ns,
        confidence=_confidence(mismatch),
        differs=_differs(mismatch, standings),
        cannot_go_on=None if until_ns is None else "a collective on which ranks disagree does not complete",
        evidence=f"{sides(mismatch, standings)}; {mismatch.reference}",
    )


def _differs(mismatch: Mismatch, standings: Mapping[int, Standing]) -> Differs | None:
    """Another size that no rank issued before is a size. One that is usual elsewhere is another collective."""
    forms = {form_of(call) for call in mismatch.calls.values()}
    if mismatch.shifted or mismatch.between is not None or len(forms) < 2:
        return None
    if len({(form.operation, form.num_bytes) for form in forms}) == 1:
        return Differs.ROOT
    usual = {
        form_of(call)
        for each in standings.values()
        for call in each.calls.calls
        if call.channel == mismatch.first.channel and call not in mismatch.calls.values()
    }
    of_culprits = {form_of(mismatch.calls[rank]) for rank in mismatch.culprits if rank in mismatch.calls}
    same_operation = len({form.operation for form in forms}) == 1
    return Differs.SIZE if same_operation and not of_culprits & usual else Differs.OPERATION


def _confidence(mismatch: Mismatch) -> str:
    if not mismatch.culprits:
        return UNKNOWN
    seen = {*mismatch.culprits} <= {*mismatch.calls}
    return HIGH if seen and not mismatch.shifted and len(mismatch.calls) >= MIN_MAJORITY else MEDIUM


def _at_most_medium(hang: Hang) -> Hang:
    return replace(hang, confidence=MEDIUM) if hang.confidence == HIGH else hang
