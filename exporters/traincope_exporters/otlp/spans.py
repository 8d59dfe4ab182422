"""A run as one trace: run, attempts, ranks of the last attempt, sampled steps, and their events.

Spans are made from finished events and keep their times to the ns. Ids follow from the run, so sending twice gives the
same trace.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, Status, StatusCode

from traincope.analysis import Analysis, RankLedger
from traincope.analysis.efficiency.goodput import all_attempts
from traincope.events import CLEAN, Flag, Kind
from traincope.store import Attempt
from traincope.timeline import RankTimeline, Step, Timeline
from traincope.timeline.timeline import TRAINING_THREAD
from traincope_exporters.otlp.identity import SCOPE, Ids, Value, clean, job_resource, rank_resource
from traincope_exporters.otlp.sampling import sampled_steps
from traincope_exporters.traces.intervals import Interval, collectives, in_thread, intervals

NS = 1e9


def spans(analysis: Analysis) -> Iterator[ReadableSpan]:
    """All spans, parents before their children."""
    sampled = sampled_steps(analysis)
    yield from outer_spans(analysis.timeline, sampled=len(sampled))
    yield from step_spans(analysis, sampled=sampled)


def outer_spans(timeline: Timeline, *, sampled: int | None = None) -> Iterator[ReadableSpan]:
    """Spans of the run, its attempts and ranks. `sampled`: number of steps with spans, if known."""
    ids, job = Ids(timeline.run.info), job_resource(timeline.run.info)
    attempts = all_attempts(timeline)
    yield _run(timeline, attempts, ids, job, sampled=sampled)
    yield from (_attempt(attempt, ids, job) for attempt in attempts)
    for maker in _makers(timeline, frozenset()):
        yield maker.rank_span()


def step_spans(analysis: Analysis, *, sampled: frozenset[int]) -> Iterator[ReadableSpan]:
    """Spans of these steps on all ranks and of their events, parents before their children. Ranks are left out."""
    ledgers = {rank.rank: rank for rank in analysis.ledger.ranks}
    for maker in _makers(analysis.timeline, sampled):
        yield from maker.steps(ledgers.get(maker.rank))
        yield from maker.details()


def _run(
    timeline: Timeline, attempts: tuple[Attempt, ...], ids: Ids, resource: Resource, *, sampled: int | None
) -> ReadableSpan:
    done = len({step.number for rank in timeline.ranks for step in rank.steps})
    return _span(
        "run",
        context=ids.span(),
        parent=None,
        resource=resource,
        start_ns=min((timeline.start_ns, *(attempt.began_ns for attempt in attempts))),
        end_ns=timeline.end_ns,
        attributes={
            "traincope.attempts": timeline.run.attempts,
            "traincope.steps": done,
            **({} if sampled is None else {"traincope.steps.sampled": sampled}),
            **{f"traincope.mesh.{axis}": size for axis, size in timeline.run.info.mesh.items()},
        },
        error=None if all(rank.ending == CLEAN for rank in timeline.ranks) else "not all ranks ended cleanly",
    )


def _attempt(attempt: Attempt, ids: Ids, resource: Resource) -> ReadableSpan:
    return _span(
        "attempt",
        context=ids.attempt(attempt.number),
        parent=ids.span(),
        resource=resource,
        start_ns=attempt.began_ns,
        end_ns=attempt.last_ns,
        attributes={"traincope.attempt": attempt.number, "traincope.steps": attempt.num_steps},
        error=None if attempt.clean else "not all ranks ended cleanly",
    )


def _makers(timeline: Timeline, sampled: frozenset[int]) -> "Iterator[_RankSpans]":
    run = timeline.run
    ids, resources = Ids(run.info), {rank.rank: rank_resource(run.info, rank) for rank in run.ranks}
    for rank in timeline.ranks:
        yield _RankSpans(rank, run.last_attempt, ids, resources[rank.rank], sampled)


class _RankSpans:
    """Spans of one rank in the last attempt."""

    def __init__(self, rank: RankTimeline, attempt: int, ids: Ids, resource: Resource, sampled: frozenset[int]) -> None:
        self.rank = rank.rank
        self._rank, self._attempt, self._ids, self._resource = rank, attempt, ids, resource
        self._sampled = {step.number: step for step in rank.steps if step.number in sampled}

    def rank_span(self) -> ReadableSpan:
        rank = self._rank
        starts = [int(records["start_ns"].min()) for records in rank.threads.values() if len(records)]
        return _span(
            "rank",
            context=self._ids.rank(self._attempt, rank.rank),
            parent=self._ids.attempt(self._attempt),
            resource=self._resource,
            start_ns=min(starts, default=rank.last_ns),
            end_ns=rank.last_ns,
            attributes={"traincope.steps": len(rank.steps), "traincope.ending": rank.ending or "none was recorded"},
            error=None if rank.ending == CLEAN else rank.ending or "no end was recorded",
        )

    def steps(self, ledger: RankLedger | None) -> Iterator[ReadableSpan]:
        terms = {} if ledger is None else _terms(ledger)
        for step in self._sampled.values():
            yield _span(
                "step",
                context=self._step(step),
                parent=self._ids.rank(self._attempt, self._rank.rank),
                resource=self._resource,
                start_ns=step.start_ns,
                end_ns=step.end_ns,
                attributes={"traincope.step": step.number, "dl.iteration": step.number, **terms.get(step.number, {})},
            )

    def details(self) -> Iterator[ReadableSpan]:
        """Spans of the events in sampled steps. The parent is the innermost interval in which the event began."""
        for thread in self._rank.threads:
            yield from self._thread(thread)

    def _thread(self, thread: str) -> Iterator[ReadableSpan]:
        """Spans of one thread. A collective continues next to later intervals, so it is never a parent."""
        thread_intervals = [*intervals(self._rank, in_thread(self._rank, thread))]
        if thread == TRAINING_THREAD:
            thread_intervals += intervals(self._rank, collectives(self._rank))
        active: list[tuple[int, SpanContext]] = []
        num_sent: Counter[int] = Counter()
        for interval in sorted(thread_intervals, key=_outer_first):
            step = None if interval.step is None else self._sampled.get(interval.step)
            if step is None:
                continue
            active = [outer for outer in active if outer[0] > interval.start_ns]
            context = self._ids.detail(self._attempt, self._rank.rank, step.number, thread, num_sent[step.number])
            num_sent[step.number] += 1
            yield self._detail(interval, context, parent=active[-1][1] if active else self._step(step))
            if interval.kind is not Kind.COLLECTIVE:
                active.append((interval.end_ns, context))

    def _detail(self, interval: Interval, context: SpanContext, *, parent: SpanContext) -> ReadableSpan:
        raised = bool(interval.flags & Flag.RAISED)
        is_cut_off = interval.open and self._rank.ending != CLEAN
        return _span(
            interval.name,
            context=context,
            parent=parent,
            resource=self._resource,
            start_ns=interval.start_ns,
            end_ns=interval.end_ns,
            attributes=_interval_attributes(interval),
            error="it raised an exception" if raised else "it was open when the events end" if is_cut_off else None,
        )

    def _step(self, step: Step) -> SpanContext:
        return self._ids.step(self._attempt, self._rank.rank, step.number)


def _outer_first(interval: Interval) -> tuple[int, int, bool]:
    """Sort key: a collective comes before the wait for it, which is not inside the collective."""
    return interval.start_ns, -interval.end_ns, interval.kind is not Kind.COLLECTIVE


def _terms(ledger: RankLedger) -> dict[int, dict[str, Value]]:
    """Step -> seconds of each ledger term. Terms without time are left out."""
    known = {_attribute(term): values for term, values in ledger.terms.items() if values is not None}
    return {
        int(number): {term: int(values[at]) / NS for term, values in known.items() if values[at]}
        for at, number in enumerate(ledger.numbers)
    }


def _attribute(term: str) -> str:
    """Attribute of a ledger term: `exposed_wait[fsdp]` -> `traincope.ledger.exposed_wait.fsdp`."""
    return f"traincope.ledger.{term.replace('[', '.').rstrip(']')}"


def _interval_attributes(interval: Interval) -> dict[str, Value]:
    attributes: dict[str, Value] = {"traincope.kind": interval.kind.name.lower()}
    if interval.step is not None:
        attributes["traincope.step"] = interval.step
    if interval.axis is not None:
        attributes |= {
            "traincope.axis": interval.axis,
            "traincope.bytes": interval.value,
            "traincope.sequence": interval.sequence,
        }
    if interval.kind is Kind.ACTION:
        attributes |= {"traincope.stage": interval.peer, "traincope.microbatch": interval.sequence}
    return {**attributes, "traincope.open": True} if interval.open else attributes


def _span(
    name: str,
    *,
    context: SpanContext,
    parent: SpanContext | None,
    resource: Resource,
    start_ns: int,
    end_ns: int,
    attributes: Mapping[str, Value],
    error: str | None = None,
) -> ReadableSpan:
    return ReadableSpan(
        str(clean(name)) or "unnamed",
        context=context,
        parent=parent,
        resource=resource,
        attributes={key: clean(value) for key, value in attributes.items()},
        status=Status(StatusCode.UNSET) if error is None else Status(StatusCode.ERROR, str(clean(error))),
        start_time=start_ns,
        end_time=max(end_ns, start_ns),
        instrumentation_scope=SCOPE,
    )
