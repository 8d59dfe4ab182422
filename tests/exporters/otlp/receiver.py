"""OTLP collector in this process, over gRPC or HTTP, that keeps decoded requests."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import KeyValue


@dataclass
class Received:
    """Requests by signal in order of arrival. `url`: the address to send to."""

    url: str = ""
    spans: list[Any] = field(default_factory=list)
    logs: list[Any] = field(default_factory=list)
    metrics: list[Any] = field(default_factory=list)

    def each_span(self) -> Iterator[tuple[dict[str, Any], Any]]:
        """(Attributes of its resource, span)."""
        for request in self.spans:
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    yield from ((attributes(resource.resource.attributes), span) for span in scope.spans)

    def each_log(self) -> Iterator[tuple[dict[str, Any], Any]]:
        for request in self.logs:
            for resource in request.resource_logs:
                for scope in resource.scope_logs:
                    yield from ((attributes(resource.resource.attributes), log) for log in scope.log_records)

    def each_metric(self) -> Iterator[tuple[dict[str, Any], Any]]:
        for request in self.metrics:
            for resource in request.resource_metrics:
                for scope in resource.scope_metrics:
                    yield from ((attributes(resource.resource.attributes), metric) for metric in scope.metrics)


def attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair) for pair in pairs}


def _value(pair: KeyValue) -> Any:
    kind = pair.value.WhichOneof("value")
    if kind == "array_value":
        return [getattr(value, value.WhichOneof("value")) for value in pair.value.array_value.values]
    return getattr(pair.value, kind)


@contextmanager
def collector(protocol: str) -> Iterator[Received]:
    """Listen on a free port of this machine, by `grpc` or `http`."""
    with _grpc() if protocol == "grpc" else _http() as received:
        yield received


@contextmanager
def _grpc() -> Iterator[Received]:
    received = Received()
    server = grpc.server(ThreadPoolExecutor(max_workers=1))
    answers = {
        "spans": trace_service_pb2.ExportTraceServiceResponse(),
        "logs": logs_service_pb2.ExportLogsServiceResponse(),
        "metrics": metrics_service_pb2.ExportMetricsServiceResponse(),
    }

    def servicer(base: type, signal: str) -> Any:
        def export(_: Any, request: Any, __: Any) -> Any:
            getattr(received, signal).append(request)
            return answers[signal]

        return type("Servicer", (base,), {"Export": export})()

    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(
        servicer(trace_service_pb2_grpc.TraceServiceServicer, "spans"), server
    )
    logs_service_pb2_grpc.add_LogsServiceServicer_to_server(
        servicer(logs_service_pb2_grpc.LogsServiceServicer, "logs"), server
    )
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(
        servicer(metrics_service_pb2_grpc.MetricsServiceServicer, "metrics"), server
    )
    received.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield received
    finally:
        server.stop(grace=None).wait()


PATHS = {
    "/v1/traces": ("spans", trace_service_pb2.ExportTraceServiceRequest),
    "/v1/logs": ("logs", logs_service_pb2.ExportLogsServiceRequest),
    "/v1/metrics": ("metrics", metrics_service_pb2.ExportMetricsServiceRequest),
}


@contextmanager
def _http() -> Iterator[Received]:
    received = Received()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            signal, request = PATHS[self.path]
            body = self.rfile.read(int(self.headers["Content-Length"]))
            getattr(received, signal).append(request.FromString(body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    received.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
