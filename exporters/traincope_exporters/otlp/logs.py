"""Log records of a run: its faults and marks, linked to the trace."""

from collections.abc import Iterator

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.trace import NonRecordingSpan, SpanContext, set_span_in_context

from traincope.analysis import Analysis, Fault, FaultKind
from traincope.analysis.faults.faults import ENDS
from traincope_exporters.otlp.identity import SCOPE, Ids, Value, clean, job_resource, rank_resource
from traincope_exporters.otlp.sampling import sampled_steps

WARNINGS = frozenset(
    {
        FaultKind.NO_END,
        FaultKind.STOPPED,
        FaultKind.STALL,
        FaultKind.SPIKE,
        FaultKind.SKIPPED_STEP,
        FaultKind.ROLLBACK,
        FaultKind.SLOW_STEP,
        FaultKind.STEP_TIME_CHANGE,
        FaultKind.MEMORY_GROWTH,
        FaultKind.THROTTLED,
        FaultKind.ROWS_REMAPPED,
        FaultKind.LINK_ERRORS,
        FaultKind.LINK_DOWN,
        FaultKind.LINK_SLOW,
    }
)
"""Faults after which a run continues. Ends of ranks are fatal, marks are information, all others are errors."""


def logs(analysis: Analysis, *, sampled: frozenset[int] | None = None) -> Iterator[ReadableLogRecord]:
    """Faults and marks in order of time, linked to the span of their step, of their rank, or of the run.

    The span of the step is used if it is sent. `sampled`: numbers of sent steps; None: those of the finished run's
    trace.
    """
    run = analysis.timeline.run
    ids, sampled = Ids(run.info), sampled_steps(analysis) if sampled is None else sampled
    resources = {rank.rank: rank_resource(run.info, rank) for rank in run.ranks}
    for fault in analysis.faults:
        only = fault.ranks[0] if len(fault.ranks) == 1 and fault.ranks[0] in resources else None
        context = _span_of(fault, ids, attempt=run.last_attempt, rank=only, sampled=sampled)
        yield ReadableLogRecord(
            log_record=_record(fault, context),
            resource=job_resource(run.info) if only is None else resources[only],
            instrumentation_scope=SCOPE,
        )


def severity(fault: Fault) -> SeverityNumber:
    """Severity of a fault. https://opentelemetry.io/docs/specs/otel/logs/data-model/#field-severitynumber"""
    if fault.is_mark:
        return SeverityNumber.INFO
    if fault.kind in WARNINGS:
        return SeverityNumber.WARN
    return SeverityNumber.FATAL if fault.kind in ENDS else SeverityNumber.ERROR


def _span_of(fault: Fault, ids: Ids, *, attempt: int, rank: int | None, sampled: frozenset[int]) -> SpanContext:
    if rank is None:
        return ids.span()
    if fault.step is None or fault.step not in sampled:
        return ids.rank(attempt, rank)
    return ids.step(attempt, rank, fault.step)


def _record(fault: Fault, context: SpanContext) -> LogRecord:
    level = severity(fault)
    return LogRecord(
        timestamp=fault.at_ns,
        observed_timestamp=fault.at_ns,
        context=set_span_in_context(NonRecordingSpan(context)),
        severity_number=level,
        severity_text=level.name,
        body=clean(fault.what),
        attributes={key: clean(value) for key, value in _attributes(fault).items()},
        event_name=f"traincope.{fault.kind.value}",
    )


def _attributes(fault: Fault) -> dict[str, Value]:
    attributes: dict[str, Value] = {"traincope.ranks": fault.ranks, "traincope.confidence": fault.confidence}
    if fault.step is not None:
        attributes["traincope.step"] = fault.step
    if fault.evidence:
        attributes["traincope.evidence"] = fault.evidence
    if fault.lasted_ns is not None:
        attributes["traincope.duration"] = fault.lasted_ns / 1e9
    if fault.open_records:
        attributes["traincope.open"] = tuple(record.what for record in fault.open_records)
    return attributes
