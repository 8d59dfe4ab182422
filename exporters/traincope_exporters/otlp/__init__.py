"""OpenTelemetry: a run's trace and what happened to it, for any collector; and live samples, pushed.

`identity` says who speaks and numbers spans, `sampling` chooses steps, `spans` and `logs` make a finished run's
messages, `metrics` those of samples, `collector` sends them, `push` does so while a job runs.
"""

from opentelemetry.sdk.metrics.export import MetricsData

from traincope.analysis import analyze
from traincope.errors import RunDirectoryError
from traincope.metrics import Sample
from traincope.timeline import Timeline
from traincope_exporters.exports import Address, CollectorExport
from traincope_exporters.history import final
from traincope_exporters.otlp.collector import Collector, Target, batched
from traincope_exporters.otlp.identity import Ids, job_resource
from traincope_exporters.otlp.logs import logs
from traincope_exporters.otlp.metrics import metrics_data
from traincope_exporters.otlp.push import OtlpPush
from traincope_exporters.otlp.spans import outer_spans, spans

__all__ = ["EXPORT", "OtlpPush", "send", "send_outline"]


def send(timeline: Timeline, address: Address) -> str:
    """The run's trace, its faults, and what its metrics were at its end.

    Raises ServerError at the first message that nobody takes, RunDirectoryError where no rank left a record.
    """
    if not timeline.ranks:
        raise RunDirectoryError(f"{timeline.run.path} holds no records; see its kernel traces with --to perfetto")
    target, analysis = Target.of(address), analyze(timeline)
    collector, num_spans, num_logs, num_points = Collector(target), 0, 0, 0
    try:
        for batch in batched(spans(analysis)):
            collector.send_spans(batch)
            num_spans += len(batch)
        for told in batched(logs(analysis)):
            collector.send_logs(told)
            num_logs += len(told)
        for samples in batched(final(analysis)):
            collector.send_metrics(_at_end(timeline, samples))
            num_points += len(samples)
    finally:
        collector.close()
    sent = f"{num_spans:,} spans, {num_logs:,} logs and {num_points:,} metric points"
    return f"sent {sent} to {target.url}; the trace is {Ids(timeline.run.info).trace:032x}"


def send_outline(timeline: Timeline, address: Address) -> None:
    """The spans above steps, which those of steps that were pushed while the job ran are in. Raises ServerError."""
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


EXPORT = CollectorExport(send=send)
