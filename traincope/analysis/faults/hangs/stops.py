"""Stops of progress: who waited for whom at the end of the records, and for how long."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from traincope.analysis.confidence import HIGH, MEDIUM, UNKNOWN
from traincope.analysis.faults.endings import is_external_signal
from traincope.analysis.faults.faults import Fault, FaultKind
from traincope.analysis.faults.hangs.common_places import where_halted
from traincope.analysis.faults.hangs.evidence.calls import Call, Identity
from traincope.analysis.faults.hangs.evidence.patience import PAUSES, UNLEARNED_NS, UNSEEN_NS, Patience, patience
from traincope.analysis.faults.hangs.evidence.standing import LOCKED, Standing
from traincope.analysis.faults.hangs.evidence.waiting import Edge, Source, edges_of, sources
from traincope.analysis.faults.hangs.hang import Differs, Hang, HangKind
from traincope.analysis.faults.hangs.odd_ones import odd_ones
from traincope.analysis.faults.hangs.sentences import SECOND_NS, in_cycle, lasting, place_of_call, stood, waited
from traincope.analysis.faults.stacks import TEARDOWN, Place
from traincope.events import END_OF_TIME_NS, NO_STEP
from traincope.timeline import Timeline
from traincope.units import numbers

MANY_GROUPS = 2
"""Groups that must agree on a rank before dumps of GPUs name it together with others."""
BY_DEVICES = (HangKind.STUCK, HangKind.UNKNOWN)
OWN_ENDS = frozenset({FaultKind.EXCEPTION, FaultKind.OUT_OF_MEMORY, FaultKind.EXIT, FaultKind.KILLED, FaultKind.SIGNAL})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """Data that all judgements of one run share."""

    timeline: Timeline
    standings: Mapping[int, Standing]
    dead: frozenset[int]
    """Ranks that ended by themselves: their end is the fault, not the waits for them."""
    patience: Patience
    dropped: frozenset[int]
    """Ranks that dropped records."""
    missing: tuple[int, ...]
    """Ranks without records."""
    refused: tuple[int, ...]
    """Ranks in `missing` whose records may not be read."""

    @property
    def patience_ns(self) -> int:
        """Longest time without progress, outside of pauses, that is not a hang."""
        return self.patience.training_ns

    def patience_with(self, each: Standing) -> int:
        """The same for this rank, in what it does."""
        return END_OF_TIME_NS if each.is_debugged else self.patience.of(each.phase)


def stops(timeline: Timeline, standings: Mapping[int, Standing], ends: Sequence[Fault]) -> Iterator[Hang]:
    """All stops that lasted longer than the run's own steps explain. `ends`: of the same timeline."""
    learned = patience(timeline)
    run = _Run(
        timeline=timeline,
        standings=standings,
        dead=_dead(standings, ends, learned.training_ns),
        patience=learned,
        dropped=frozenset(rank.rank for rank in timeline.run.ranks if rank.dropped),
        missing=timeline.run.missing,
        refused=timeline.run.refused,
    )
    edges = edges_of(standings)
    if run.patience.imported:
        yield from map(_without_a_time, _stops(run, edges))
    else:
        yield from _stops(run, edges)


def _without_a_time(hang: Hang) -> Hang:
    """Leave out the time of a stop between the last entries of dumps, which do not show when they were written."""
    lasted_ns = hang.lasted_ns
    return hang if lasted_ns is None or lasted_ns >= SECOND_NS else replace(hang, until_ns=hang.since_ns)


def _stops(run: _Run, edges: Sequence[Edge]) -> Iterator[Hang]:
    standings = run.standings
    if edges:
        found = _merged(list(_of_sources(run, sources(edges))), alone=_missed_alone(run, edges))
        yield from (_by_devices(run, hang, edges) for hang in found)
    elif any(each.left for each in standings.values()):
        yield from _left_behind(run)
    elif not run.patience.imported or _may_stand(standings.values()):
        yield from _without_waits(run)


def _may_stand(standings: Iterable[Standing]) -> bool:
    """Return whether imported ranks may stand still although no wait is seen: by their stacks, or by a call that is not
    complete. Dumps of torch's flight recorder without one have nothing open.
    """
    return any(each.frames or any(call.unfinished for call in each.calls.calls) for each in standings)


def _dead(standings: Mapping[int, Standing], ends: Sequence[Fault], needed_ns: int) -> frozenset[int]:
    """Ranks that ended by themselves. One that was killed, or whose communication failed, after it had stood still for
    long did not cause the stop.
    """
    return frozenset(
        rank
        for end in ends
        if ended_by_itself(end)
        for rank in end.ranks
        if not (end.kind is FaultKind.KILLED or end.of_communication)
        or not _stood_before(standings.get(rank), needed_ns)
    )


def _stood_before(each: Standing | None, needed_ns: int) -> bool:
    return each is not None and each.until_ns is not None and each.until_ns - each.progress_ns >= needed_ns


def ended_by_itself(end: Fault) -> bool:
    """True for an end that neither a stop of the job from outside nor an earlier end explains."""
    interrupted = "KeyboardInterrupt" in end.what or "(signal 15)" in end.what
    return end.kind in OWN_ENDS and not end.follows and not is_external_signal(end) and not interrupted


def _of_sources(run: _Run, all_sources: Sequence[Source]) -> Iterator[Hang]:
    """One hang per source. Ranks that wait for a dead rank accuse no other rank: its end explains their wait."""
    explained = {edge.rank for source in all_sources if run.dead & set(source.ranks) for edge in source.edges}
    for source in all_sources:
        hang = _of_source(run, source)
        if hang is not None and not (hang.kind is HangKind.UNKNOWN and explained & set(hang.victims)):
            yield hang


def _of_source(run: _Run, source: Source) -> Hang | None:
    if run.dead & set(source.ranks):
        return None
    if source.cycle:
        return _deadlock(run, source)
    (rank,) = source.ranks
    each = run.standings.get(rank)
    if each is None:
        return _no_records(run, source, rank)
    if each.waits:
        return _complete(run, source, each)
    return _stuck(run, source, each)


def _since_ns(edges: Sequence[Edge]) -> int:
    """Instant from which all these ranks waited."""
    return max(edge.call.start_ns for edge in edges)


def _until_ns(run: _Run, ranks: Sequence[int]) -> int | None:
    """Latest instant at which one of the ranks certainly existed."""
    known = [run.standings[rank].until_ns for rank in ranks if rank in run.standings]
    return max((until_ns for until_ns in known if until_ns is not None), default=None)


def _stuck(run: _Run, source: Source, culprit: Standing) -> Hang | None:
    """The rank joined nothing, and others waited for it."""
    since_ns = max(culprit.progress_ns, _since_ns(source.edges))
    waited_ns = _until_ns(run, [edge.rank for edge in source.edges])
    own_until_ns = waited_ns if culprit.left else culprit.until_ns
    until_ns = waited_ns if own_until_ns is None or waited_ns is None else min(own_until_ns, waited_ns)
    timed_out = all(edge.absent and edge.call.raised for edge in source.edges) and any(
        run.standings[edge.rank].timed_out for edge in source.edges
    )
    if until_ns is None or until_ns - since_ns < (0 if timed_out else run.patience_with(culprit)):
        return None
    hang = _hang(
        run,
        HangKind.LEFT if culprit.left else HangKind.STUCK,
        source,
        since_ns=since_ns,
        until_ns=until_ns,
        doing=culprit.doing,
    )
    why_not = _why_unknown(run, source, culprit, known=own_until_ns is not None)
    if why_not is not None:
        return _unknown(hang, source.ranks, f"did not join, but {why_not}")
    did = "ended its run before" if culprit.left else stood(source.ranks, run.standings, lasted_ns=until_ns - since_ns)
    subject = f"rank {culprit.rank} {did}" if culprit.left else did
    seen = culprit.stopped or (culprit.place is Place.OUTSIDE and not culprit.left)
    certain = seen and all(edge.absent for edge in source.edges)
    return replace(
        hang,
        confidence=HIGH if certain else MEDIUM,
        cannot_go_on=culprit.cannot_go_on,
        evidence="; ".join([subject, *([LOCKED] if culprit.cannot_go_on == LOCKED else []), hang.evidence]),
    )


def _why_unknown(run: _Run, source: Source, culprit: Standing, *, known: bool) -> str | None:
    """Evidence that is missing to name the rank; None if none is missing."""
    if not known:
        return "no evidence shows whether its process lived"
    if culprit.place is Place.COMMUNICATION:
        return f"it stood in communication that no record covers{f', at {culprit.site}' if culprit.site else ''}"
    if culprit.rank in run.dropped:
        return "it dropped records, perhaps those of the collective"
    if any(edge.absent for edge in source.edges):
        return None
    channels = {edge.call.channel for edge in source.edges}
    if any(call.channel in channels for call in culprit.calls.outstanding):
        return "its own last collective on the group did not end either"
    if not culprit.is_outside and not _left_before(source, culprit):
        return "the records do not show whether it joined"
    return None


def _left_before(source: Source, culprit: Standing) -> bool:
    """True if the rank's process ended before it completed the step in which the others waited for it."""
    last = max((step.number for step in culprit.calls.rank.steps), default=NO_STEP)
    waited_in = [edge.call.known_step for edge in source.edges]
    return culprit.exited and all(step is not None and step > last for step in waited_in)


def _deadlock(run: _Run, source: Source) -> Hang | None:
    inside = [edge for edge in source.edges if edge.rank in source.ranks]
    since_ns, until_ns = _since_ns(inside), _until_ns(run, source.ranks)
    if until_ns is None or until_ns - since_ns < run.patience_ns:
        return None
    hang = _hang(run, HangKind.DEADLOCK, source, since_ns=since_ns, until_ns=until_ns)
    text = f"{in_cycle(source.ranks, inside, run.standings)}; all{lasting(until_ns - since_ns)}"
    departs = {rank: run.standings[rank].calls.departs for rank in source.ranks}
    odd = tuple(rank for rank, departed in departs.items() if departed)
    direct = {edge.call.channel.direct for edge in inside}
    alike = direct == {False} or _are_few(run, odd)
    is_habit = alike and bool(odd) and len(odd) < len(departs) and None not in departs.values()
    waited = all(edge.waited or (is_habit and run.standings[edge.rank].may_wait) for edge in inside)
    if not waited or not all(edge.absent for edge in inside) or run.dropped & set(source.ranks):
        return _unknown(hang, source.ranks, "did not join, but the records do not show all of their waits")
    odd_one = odd_ones(source.ranks, inside, run.standings)
    if odd_one is not None and odd_one.ranks:
        return _mismatch(run, hang, odd_one.ranks, odd_one.differs, f"{text}; {odd_one.why}")
    if is_habit:
        return _departed(run, hang, odd, text, direct=True in direct)
    seen = all(run.standings[rank].place is Place.COMMUNICATION for rank in source.ranks)
    text = text if odd_one is None else f"{text}; {odd_one.why}"
    return replace(hang, confidence=HIGH if seen else MEDIUM, evidence=text, cannot_go_on="they wait for each other")


def _are_few(run: _Run, odd: tuple[int, ...]) -> bool:
    """True if most ranks do what they always did. Each stage of a pipeline has messages of its own: where as many ranks
    leave their habit, the others may be those that should have.
    """
    departs = {rank: each.calls.departs for rank, each in run.standings.items()}
    departed = [rank for rank, left in departs.items() if left]
    return None not in departs.values() and set(departed) == set(odd) and 2 * len(odd) < len(departs)


def _departed(run: _Run, hang: Hang, odd: tuple[int, ...], text: str, *, direct: bool) -> Hang:
    """Name the ranks of a cycle that issued what they never issued before: the others are their victims. `direct`: they
    wait for messages; of these, a rank that leaves some out has issued a part.
    """
    reorders = not direct and all(run.standings[rank].calls.reorders for rank in odd)
    how = "the same collectives in another order than" if reorders else "other collectives than"
    how = "other messages, or fewer, than" if direct else how
    when = "" if hang.step is None or direct else f"in step {hang.step}, "
    habit = f"{when}{numbers(odd, 'rank')} issued {how} in earlier steps"
    return _mismatch(run, hang, odd, Differs.ORDER if reorders else Differs.OPERATION, f"{text}; {habit}")


def _mismatch(run: _Run, hang: Hang, odd: tuple[int, ...], differs: Differs, evidence: str) -> Hang:
    """Name some ranks of a cycle: the others are their victims."""
    culprit = run.standings[odd[0]]
    return replace(
        hang,
        kind=HangKind.MISMATCH,
        culprits=odd,
        victims=tuple(sorted({*hang.culprits, *hang.victims} - {*odd})),
        call_site=culprit.site,
        stack=tuple(map(str, culprit.frames)),
        differs=differs,
        evidence=evidence,
    )


def _complete(run: _Run, source: Source, each: Standing) -> Hang | None:
    """The end of the chain waits in a call that all its members joined."""
    call = each.waits[0]
    since_ns, until_ns = max(_since_ns(source.edges), call.start_ns), each.until_ns
    if until_ns is None or until_ns - since_ns < run.patience_ns:
        return None
    return _joined_by_all(run, call, since_ns=since_ns, until_ns=until_ns, victims=source.victims)


def _joined_by_all(run: _Run, call: Call, *, since_ns: int, until_ns: int, victims: Sequence[int]) -> Hang:
    inside = [run.standings.get(rank) for rank in call.members]
    lacks = [each is not None and _did_not_get(each, call) for each in inside]
    certain = any(lacks) and all(
        lacking or (each is not None and _completed(each, call)) for each, lacking in zip(inside, lacks, strict=True)
    )
    text = f"all members joined {place_of_call(call)}, and it did not complete{lasting(until_ns - since_ns)}"
    lacking = [rank for rank, lacks_it in zip(call.members, lacks, strict=True) if lacks_it]
    place, where = where_halted(run.timeline, call, lacking=lacking) if certain else (None, "")
    return Hang(
        kind=HangKind.NONE_COMPLETES if certain else HangKind.UNKNOWN,
        suspects=() if certain else tuple(sorted(call.members)),
        victims=tuple(sorted({*call.members, *victims})) if certain else tuple(victims),
        group=call.channel.group,
        axis=call.group.axis,
        collective=call.operation,
        step=call.known_step,
        since_ns=since_ns,
        until_ns=until_ns,
        confidence=MEDIUM if certain else UNKNOWN,
        common_place=place,
        evidence=f"{text}; {where or 'the records do not show that all of them waited for it'}",
    )


def _did_not_get(each: Standing, call: Call) -> bool:
    """True if the rank issued its part of the call, and did not get the result. torch's flight recorder shows that of a
    thread that waits in C++ too.
    """
    shown = each.certain or (each.calls.by_flight and each.may_wait)
    return shown and any(own.identity == call.identity for own in each.waits)


def _completed(each: Standing, call: Call) -> bool:
    """True if the rank got its result of the call. A broken link may keep it from some members only."""
    return any(own.identity == call.identity and not own.unfinished for own in each.calls.calls)


def _no_records(run: _Run, source: Source, rank: int) -> Hang | None:
    since_ns, until_ns = _since_ns(source.edges), _until_ns(run, [edge.rank for edge in source.edges])
    if until_ns is None or until_ns - since_ns < run.patience_ns:
        return None
    hang = _hang(run, HangKind.UNKNOWN, source, since_ns=since_ns, until_ns=until_ns)
    why = "its records may not be read" if rank in run.refused else "it left no records"
    return _unknown(hang, (rank,), f"may not have joined, but {why}")


def _hang(run: _Run, kind: HangKind, source: Source, *, since_ns: int, until_ns: int, doing: str | None = None) -> Hang:
    call, culprit = source.edges[0].call, run.standings.get(source.ranks[0])
    return Hang(
        kind=kind,
        culprits=source.ranks,
        victims=source.victims,
        group=call.channel.group,
        axis=call.group.axis,
        collective=call.operation,
        step=call.known_step if culprit is None or culprit.step is None else culprit.step,
        call_site=None if culprit is None else culprit.site,
        stack=() if culprit is None else tuple(map(str, culprit.frames)),
        doing=doing,
        since_ns=since_ns,
        until_ns=until_ns,
        confidence=MEDIUM,
        evidence=waited(source.edges, source.victims, run.standings),
    )


def _unknown(hang: Hang, suspects: Sequence[int], why: str) -> Hang:
    """The same stop without a culprit."""
    text = f"{hang.evidence}; the culprit is unknown: {numbers(suspects, 'rank')} {why}"
    return replace(
        hang,
        kind=HangKind.UNKNOWN,
        culprits=(),
        suspects=tuple(suspects),
        call_site=None,
        stack=(),
        doing=None,
        confidence=UNKNOWN,
        evidence=text,
    )


def _missed_alone(run: _Run, edges: Sequence[Edge]) -> frozenset[int]:
    """Ranks of which torch's flight recorder shows that they alone did not join a collective of some group, and that
    they did not join those of others.
    """
    missed: dict[tuple[int, Identity], set[int]] = {}
    groups: dict[int, set[str]] = {}
    for edge in edges:
        missed.setdefault((edge.rank, edge.call.identity), set()).add(edge.other)
        if edge.absent:
            groups.setdefault(edge.other, set()).add(edge.call.channel.group)
    alone = {rank for others in missed.values() if len(others) == 1 for rank in others}
    return frozenset(
        rank
        for rank, names in groups.items()
        if rank in alone and len(names) >= MANY_GROUPS and run.standings[rank].calls.by_flight
    )


def _merged(found: Sequence[Hang], *, alone: frozenset[int]) -> Iterator[Hang]:
    """Several stuck ranks with a common victim are one hang. If one of them is not certain, all are suspects.

    `alone`: ranks that the members of several groups name.
    """
    rest = sorted(found, key=lambda hang: hang.since_ns)
    while rest:
        first, *others = rest
        same = [hang for hang in others if set(hang.victims) & set(first.victims)]
        rest = [hang for hang in others if hang not in same]
        yield _joined_hang([first, *same], alone=alone) if same else first


def _joined_hang(hangs: Sequence[Hang], *, alone: frozenset[int]) -> Hang:
    first = hangs[0]
    if all(hang.kind is HangKind.NONE_COMPLETES for hang in hangs):
        return first
    ranks = tuple(sorted({rank for hang in hangs for rank in (*hang.culprits, *hang.suspects)}))
    victims = tuple(sorted({rank for hang in hangs for rank in hang.victims} - set(ranks)))
    text = "; ".join(hang.evidence for hang in hangs)
    if all(hang.confidence == HIGH or (hang.culprits and alone >= {*hang.culprits}) for hang in hangs):
        return replace(first, culprits=ranks, victims=victims, evidence=text)
    return replace(
        _unknown(first, ranks, "did not join or left no records, and the evidence about one of them is weak"),
        victims=victims,
    )


def _by_devices(run: _Run, hang: Hang, edges: Sequence[Edge]) -> Hang:
    """Name the ranks whose GPUs did not complete collectives of several groups that other members completed.

    They must contain those for which the others wait. One collective may complete on a member a moment later.
    """
    halted = tuple(sorted(rank for rank, each in run.standings.items() if len(each.calls.behind) >= MANY_GROUPS))
    if not halted or not {*(hang.culprits or hang.suspects)} <= {*halted} or hang.kind not in BY_DEVICES:
        return hang
    groups = {name for rank in halted for name in run.standings[rank].calls.behind}
    done = (
        f"{numbers(halted, 'rank')} did not complete collectives of {len(groups)} groups that other members completed, "
        f"so their GPUs stand still{lasting(hang.lasted_ns or 0)}"
    )
    direct = [edge for edge in edges if edge.other in halted and edge.rank not in halted] or list(edges)
    victims = tuple(sorted({*(edge.rank for edge in edges), *hang.victims} - {*halted}))
    culprit = run.standings[halted[0]]
    return replace(
        hang,
        kind=HangKind.STUCK,
        culprits=halted,
        suspects=(),
        victims=victims,
        confidence=MEDIUM,
        doing=culprit.doing,
        evidence=f"{done}; {numbers(victims, 'rank')} waited in {place_of_call(direct[0].call)}",
    )


def _left_behind(run: _Run) -> Iterator[Hang]:
    """Ranks that stand still after all others ended well. They may finish work of their own, except in the teardown."""
    rest = [each for each in run.standings.values() if not each.left]
    known = [each.until_ns for each in rest if each.until_ns is not None]
    if not rest or len(known) < len(rest) or run.dead or run.missing:
        return
    since_ns = max(each.calls.rank.last_ns if each.left else each.progress_ns for each in run.standings.values())
    lasted_ns, ranks = min(known) - since_ns, tuple(each.rank for each in rest)
    is_known = all(each.tears_down or each.phase in PAUSES for each in rest)
    if lasted_ns < max([0 if is_known else UNLEARNED_NS, *map(run.patience_with, rest)]):
        return
    first, hang = rest[0], _silent(rest, since_ns=since_ns, until_ns=min(known))
    where = f" in {TEARDOWN}" if first.tears_down else ""
    ended = f"{stood(ranks, run.standings, lasted_ns=lasted_ns)}{where}; all other ranks have ended"
    if not is_known:
        yield replace(hang, suspects=ranks, evidence=ended)
        return
    yield replace(
        hang,
        kind=HangKind.STUCK,
        culprits=ranks,
        call_site=first.site,
        stack=tuple(map(str, first.frames)),
        doing=where.strip() or first.doing,
        confidence=MEDIUM,
        cannot_go_on=first.cannot_go_on,
        evidence=ended,
    )


def _without_waits(run: _Run) -> Iterator[Hang]:
    """A stop in which no rank is known to wait for a missing one: the collectives are complete or not recorded."""
    standings = [each for each in run.standings.values() if not each.left]
    if run.dead or len(standings) < 2:
        return
    since_ns = max(each.progress_ns for each in standings)
    known = [each.until_ns for each in standings if not each.is_copy_without_look]
    if not known or any(until_ns is None for until_ns in known):
        return
    until_ns = min(until_ns for until_ns in known if until_ns is not None)
    lasted_ns = until_ns - since_ns
    # All ranks at work of their own: none waits for another.
    own_ns = UNLEARNED_NS if all(each.is_outside for each in standings) else 0
    if lasted_ns < max([own_ns, *map(run.patience_with, standings)]):
        return
    shown = [each for each in standings if each.certain or each.calls.by_flight]
    complete = next((call for each in shown for call in each.waits), None)
    if complete is not None:
        yield _joined_by_all(run, complete, since_ns=since_ns, until_ns=until_ns, victims=())
    elif all(each.frames or each.stopped for each in standings):
        yield _by_stacks(run, standings, since_ns=since_ns, until_ns=until_ns)
    elif lasted_ns >= UNSEEN_NS:
        yield _silent(standings, since_ns=since_ns, until_ns=until_ns)


def _by_stacks(run: _Run, standings: Sequence[Standing], *, since_ns: int, until_ns: int) -> Hang:
    """One rank stood outside of communication, and all others in it or in backward."""
    outside = [each for each in standings if each.is_outside]
    hang = _silent(standings, since_ns=since_ns, until_ns=until_ns)
    decided = not run.missing and all(each.is_decided for each in standings)
    if len(outside) != 1 or not decided or len(outside) == len(standings):
        places = "; ".join(f"rank {each.rank} stood at {each.site or each.doing}" for each in standings[:4])
        suspects = tuple(each.rank for each in outside)
        return replace(hang, suspects=suspects, evidence=f"{hang.evidence}; {places}")
    (culprit,) = outside
    others = [each.rank for each in standings if each is not culprit]
    unknown = "no collective was recorded" if run.patience.imported else "the step was recorded without its collectives"
    text = (
        f"{stood([culprit.rank], run.standings, lasted_ns=until_ns - since_ns)}; "
        f"{numbers(others, 'rank')} stood in communication or in backward; {unknown}"
    )
    return replace(
        hang,
        kind=HangKind.STUCK,
        culprits=(culprit.rank,),
        victims=tuple(others),
        step=culprit.step,
        call_site=culprit.site,
        stack=tuple(map(str, culprit.frames)),
        doing=culprit.doing,
        confidence=MEDIUM,
        cannot_go_on=culprit.cannot_go_on,
        evidence=f"{text}; {LOCKED}" if culprit.cannot_go_on == LOCKED else text,
    )


def _silent(standings: Sequence[Standing], *, since_ns: int, until_ns: int) -> Hang:
    ranks = numbers([each.rank for each in standings], "rank")
    return Hang(
        kind=HangKind.UNKNOWN,
        step=min((each.step for each in standings if each.step is not None), default=None),
        since_ns=since_ns,
        until_ns=until_ns,
        confidence=UNKNOWN,
        evidence=f"{ranks} made no progress{lasting(until_ns - since_ns)}; the records show no wait for a rank",
    )
