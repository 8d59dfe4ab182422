"""OpenTelemetry: a run's trace and what happened to it, for any collector; and live samples, pushed.

`identity` says who speaks and numbers spans, `sampling` chooses steps, `spans` and `logs` make a finished run's
messages, `metrics` those of samples, `collector` sends them, `push` does so while a job runs.
"""

from collections.abc import Iterator
from itertools import islice
from typing import TypeVar

from traincope.analysis import analyze
from traincope.timeline import Timeline
from traincope_exporters.exports import Address, CollectorExport
from traincope_exporters.otlp.collector import Collector, Target
from traincope_exporters.otlp.identity import Ids
from traincope_exporters.otlp.logs import logs
from traincope_exporters.otlp.push import OtlpPush
from traincope_exporters.otlp.spans import spans

__all__ = ["EXPORT", "OtlpPush", "send"]

AT_ONCE = 2048
"""Spans or logs of a message: some hundred KB, where collectors take 4 MB."""

T = TypeVar("T")


def send(timeline: Timeline, address: Address) -> str:
    """The run's trace and its faults. Raises ServerError at the first message that nobody takes."""
    analysis = analyze(timeline)
    collector, num_spans, num_logs = Collector(Target.of(address)), 0, 0
    try:
        for batch in _batches(spans(analysis)):
            collector.send_spans(batch)
            num_spans += len(batch)
        for told in _batches(logs(analysis)):
            collector.send_logs(told)
            num_logs += len(told)
    finally:
        collector.close()
    trace = f"{Ids(timeline.run.info).trace:032x}"
    return f"sent {num_spans:,} spans of trace {trace} and {num_logs:,} logs to {collector.target.url}"


def _batches(all_: Iterator[T]) -> Iterator[list[T]]:
    while batch := list(islice(all_, AT_ONCE)):
        yield batch


EXPORT = CollectorExport(send=send)
