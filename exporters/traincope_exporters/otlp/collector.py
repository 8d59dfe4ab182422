"""A collector, over gRPC or HTTP, by OpenTelemetry's own exporters: it took a batch in time, or says why not."""

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
from traincope.urls import is_url
from traincope_exporters.exports import Address

GRPC, HTTP = "grpc", "http"
GRPC_PORT, HTTP_PORT = 4317, 4318
PROTOCOLS = {"grpc": GRPC, "http": HTTP, "http/protobuf": HTTP}
"""As OTEL_EXPORTER_OTLP_PROTOCOL calls them -> as we do."""
AT_ONCE = 2048
"""Spans, logs or points of a message: some hundred KB, where collectors take 4 MB."""
T = TypeVar("T")
EXPORTERS = "opentelemetry.exporter.otlp"
"""Logger that says why something could not be sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where to send, all of it known."""

    url: str
    protocol: str
    timeout_seconds: float

    @classmethod
    def of(cls, address: Address) -> "Target":
        """What the address leaves open, the environment says, or custom. Raises UsageError for what is no URL."""
        told = address.endpoint or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
        protocol = address.protocol or PROTOCOLS.get(os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", ""))
        if protocol is None:
            protocol = HTTP if told and told.rstrip("/").endswith(f":{HTTP_PORT}") else GRPC
        url = told or f"http://127.0.0.1:{HTTP_PORT if protocol == HTTP else GRPC_PORT}"
        if not is_url(url):
            raise UsageError(f"{url!r} is no URL of a collector; give one as http://127.0.0.1:{GRPC_PORT}")
        return cls(url=url.rstrip("/"), protocol=protocol, timeout_seconds=address.timeout_seconds)


def batched(all_: Iterable[T]) -> Iterator[list[T]]:
    """As many as a message takes."""
    left = iter(all_)
    while batch := list(islice(left, AT_ONCE)):
        yield batch


class _Exporter(Protocol):
    def export(self, batch: Any, /) -> Any: ...

    def shutdown(self) -> None: ...


Makers = Mapping[str, Callable[..., _Exporter]]


class Collector:
    """Sends batches; use it in one thread."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._exporters: dict[str, _Exporter] = {}

    def send_spans(self, batch: Sequence[ReadableSpan]) -> None:
        """Raises ServerError where it was not taken in time, ConfigError for what the environment says and none can."""
        self._send("spans", batch)

    def send_logs(self, batch: Sequence[ReadableLogRecord]) -> None:
        """Likewise."""
        self._send("logs", batch)

    def send_metrics(self, batch: MetricsData) -> None:
        """Likewise."""
        self._send("metrics", batch)

    def close(self) -> None:
        for exporter in self._exporters.values():
            exporter.shutdown()

    def _send(self, signal: str, batch: object) -> None:
        with _overheard() as said:
            if signal not in self._exporters:
                self._exporters[signal] = _exporter(signal, self.target)
            result = self._exporters[signal].export(batch)
        if result.name != "SUCCESS":
            why = said[0] if said else "no answer"
            raise ServerError(
                f"no collector took the {signal} at {self.target.url} ({self.target.protocol}): {why.rstrip('.')}; "
                "is one running there?"
            )


def _exporter(signal: str, target: Target) -> _Exporter:
    """Imported when wanted: gRPC takes its time."""
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
        raise ConfigError(f"{error}: say gzip, or nothing") from error


def _http(signal: str, url: str, timeout_seconds: float) -> _Exporter:
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    makers: Makers = {"spans": OTLPSpanExporter, "logs": OTLPLogExporter, "metrics": OTLPMetricExporter}
    return makers[signal](endpoint=url, timeout=timeout_seconds)


class _Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@contextmanager
def _overheard() -> Iterator[list[str]]:
    """What the exporters log meanwhile, which then nobody else hears: it is said once, in our words."""
    logger, listener = logging.getLogger(EXPORTERS), _Listener()
    before = logger.propagate
    logger.addHandler(listener)
    logger.propagate = False
    try:
        yield listener.said
    finally:
        logger.removeHandler(listener)
        logger.propagate = before
