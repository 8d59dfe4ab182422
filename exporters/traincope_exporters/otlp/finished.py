"""Send a finished run: its trace, its faults, and the last values of its metrics."""

from opentelemetry.sdk.metrics.export import MetricsData

from traincope.analysis import analyze
from traincope.errors import RunDirectoryError
from traincope.metrics.sample import Sample
from traincope.report.exports import Address
from traincope.timeline import Timeline
from traincope_exporters.history import final
from traincope_exporters.otlp.collector import Collector, Target, batched
from traincope_exporters.otlp.identity import Ids, job_resource
from traincope_exporters.otlp.logs import logs
from traincope_exporters.otlp.metrics import metrics_data
from traincope_exporters.otlp.spans import outer_spans, spans


def send(timeline: Timeline, address: Address) -> str:
    """Send the run's trace, its faults, and the last values of its metrics.

    Raises ServerError at the first message that is not accepted, RunDirectoryError if no rank recorded an event.
    """
    if not timeline.ranks:
        raise RunDirectoryError(f"{timeline.run.path} holds no records; see its kernel traces with --to perfetto")
    target, analysis = Target.of(address), analyze(timeline)
    collector, num_spans, num_logs, num_points = Collector(target), 0, 0, 0
    try:
        for batch in batched(spans(analysis)):
            collector.send_spans(batch)
            num_spans += len(batch)
        for records in batched(logs(analysis)):
            collector.send_logs(records)
            num_logs += len(records)
        for samples in batched(final(analysis)):
            collector.send_metrics(_at_end(timeline, samples))
            num_points += len(samples)
    finally:
        collector.close()
    sent = f"{num_spans:,} spans, {num_logs:,} logs and {num_points:,} metric points"
    return f"sent {sent} to {target.url}; the trace is {Ids(timeline.run.info).trace:032x}"


def send_outline(timeline: Timeline, address: Address) -> None:
    """Send the spans above the steps: parents of the step spans that were pushed during the job. Raises ServerError."""
    collector = Collector(Target.of(address))
    try:
        for batch in batched(outer_spans(timeline)):
            collector.send_spans(batch)
    finally:
        collector.close()


def _at_end(timeline: Timeline, samples: list[Sample]) -> MetricsData:
    return metrics_data(
        samples, resource=job_resource(timeline.run.info), start_ns=timeline.start_ns, at_ns=timeline.end_ns
    )
