"""Client of a collector, over gRPC or HTTP, with OpenTelemetry's exporters.

A failed batch raises an error with the reason.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, TypeVar

from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.metrics.export import MetricsData
from opentelemetry.sdk.trace import ReadableSpan

from traincope.errors import ConfigError, ServerError, UsageError
from traincope.report.exports import Address
from traincope.urls import is_url

GRPC, HTTP = "grpc", "http"
GRPC_PORT, HTTP_PORT = 4317, 4318
PROTOCOLS = {"grpc": GRPC, "http": HTTP, "http/protobuf": HTTP}
"""Value of OTEL_EXPORTER_OTLP_PROTOCOL -> protocol here."""
BATCH_SIZE = 2048
"""Spans, logs or points per message. They take some hundred KB; collectors accept 4 MB."""
T = TypeVar("T")
EXPORTERS = "opentelemetry.exporter.otlp"
"""Logger to which the exporters write the reason of a failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Complete address of a collector."""

    url: str
    protocol: str
    timeout_seconds: float

    @classmethod
    def of(cls, address: Address) -> "Target":
        """Complete an address from the environment and the defaults. Raises UsageError if the endpoint is not a URL."""
        endpoint = address.endpoint or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
        protocol = address.protocol or PROTOCOLS.get(os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", ""))
        if protocol is None:
            protocol = HTTP if endpoint and endpoint.rstrip("/").endswith(f":{HTTP_PORT}") else GRPC
        url = endpoint or f"http://127.0.0.1:{HTTP_PORT if protocol == HTTP else GRPC_PORT}"
        if not is_url(url):
            raise UsageError(f"{url!r} is not the URL of a collector; give one like http://127.0.0.1:{GRPC_PORT}")
        return cls(url=url.rstrip("/"), protocol=protocol, timeout_seconds=address.timeout_seconds)


def batched(items: Iterable[T]) -> Iterator[list[T]]:
    """Split into batches of at most `BATCH_SIZE`."""
    left = iter(items)
    while batch := list(islice(left, BATCH_SIZE)):
        yield batch


class _Exporter(Protocol):
    def export(self, batch: Any, /) -> Any: ...

    def shutdown(self) -> None: ...


Makers = Mapping[str, Callable[..., _Exporter]]


class Collector:
    """Sender of batches. It is not thread-safe."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._exporters: dict[str, _Exporter] = {}

    def send_spans(self, batch: Sequence[ReadableSpan]) -> None:
        """Send spans.

        Raises ServerError if they are not accepted in time, ConfigError for unusable environment variables.
        """
        self._send("spans", batch)

    def send_logs(self, batch: Sequence[ReadableLogRecord]) -> None:
        """Send log records. Raises as `send_spans`."""
        self._send("logs", batch)

    def send_metrics(self, batch: MetricsData) -> None:
        """Send metrics. Raises as `send_spans`."""
        self._send("metrics", batch)

    def close(self) -> None:
        for exporter in self._exporters.values():
            exporter.shutdown()

    def _send(self, signal: str, batch: object) -> None:
        with _capture_logs() as messages:
            if signal not in self._exporters:
                self._exporters[signal] = _exporter(signal, self.target)
            result = self._exporters[signal].export(batch)
        if result.name != "SUCCESS":
            why = " ".join(messages[-1].split()) if messages else "no answer"
            raise ServerError(
                f"no collector at {self.target.url} ({self.target.protocol}) accepted the {signal}: {why.rstrip('.')}; "
                "is one running there?"
            )


def _exporter(signal: str, target: Target) -> _Exporter:
    """Create an exporter. The imports are here because importing gRPC is slow."""
    if target.protocol == HTTP:
        return _http(signal, f"{target.url}/v1/{'traces' if signal == 'spans' else signal}", target.timeout_seconds)
    from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
    from opentelemetry.exporter.otlp.proto.grpc.exporter import InvalidCompressionValueException
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    makers: Makers = {"spans": OTLPSpanExporter, "logs": OTLPLogExporter, "metrics": OTLPMetricExporter}
    plain = target.url.startswith("http:")
    try:
        return makers[signal](endpoint=target.url, insecure=plain, timeout=target.timeout_seconds)
    except InvalidCompressionValueException as error:
        raise ConfigError(f"{error}: set it to gzip or unset it") from error


def _http(signal: str, url: str, timeout_seconds: float) -> _Exporter:
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    makers: Makers = {"spans": OTLPSpanExporter, "logs": OTLPLogExporter, "metrics": OTLPMetricExporter}
    return makers[signal](endpoint=url, timeout=timeout_seconds)


class _LogCapture(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@contextmanager
def _capture_logs() -> Iterator[list[str]]:
    """Capture the exporters' log messages, so that a failure is reported once, in one sentence."""
    logger, capture = logging.getLogger(EXPORTERS), _LogCapture()
    before = logger.propagate
    logger.addHandler(capture)
    logger.propagate = False
    try:
        yield capture.messages
    finally:
        logger.removeHandler(capture)
        logger.propagate = before
