"""Addresses of collectors, and failures: bounded time, one sentence, no exception in the agent."""

import logging
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.exporters.runs import two_ranks
from tests.timeline.build import timeline
from traincope.errors import ConfigError, RunDirectoryError, ServerError, UsageError
from traincope.metrics import catalogue
from traincope.metrics.sample import Sample
from traincope.report.exports import Address
from traincope_exporters.otlp.collector import Collector, Target
from traincope_exporters.otlp.finished import send
from traincope_exporters.otlp.push import OtlpPush

SAMPLES = [Sample(metric=catalogue.LAST_STEP, labels=("r", "h", "0"), value=1)]


@pytest.fixture
def closed_port() -> Iterator[str]:
    """URL of a port on which no server listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def silent_port() -> Iterator[str]:
    """URL of a port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_closed_port_is_one_sentence(closed_port: str, protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    """The exporter's reason depends on which comes first, the refusal or the deadline. It is not compared."""
    with pytest.raises(ServerError) as raised:
        send(two_ranks(), Address(endpoint=closed_port, protocol=protocol, timeout_seconds=0.5))
    start, end = f"no collector at {closed_port} ({protocol}) accepted the spans: ", "; is one running there?"
    sentence = str(raised.value)
    assert sentence.startswith(start)
    assert sentence.endswith(end)
    assert len(sentence) > len(start) + len(end)
    assert "\n" not in sentence
    assert raised.value.exit_code == 9
    assert [record for record in caplog.records if record.name.startswith("opentelemetry")] == []


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_silent_collector_times_out(silent_port: str, protocol: str) -> None:
    with pytest.raises(ServerError, match="accepted the spans"):
        send(two_ranks(), Address(endpoint=silent_port, protocol=protocol, timeout_seconds=0.5))


def test_a_push_to_a_closed_port_is_counted_as_dropped(closed_port: str) -> None:
    push = OtlpPush(Address(endpoint=closed_port, protocol="http", timeout_seconds=0.3), run="r", host="h", start_ns=0)
    for _ in range(3):
        push.push(SAMPLES)
    push.close(timeout_seconds=90)
    assert (push.sent, push.dropped) == (0, 3)
    assert "accepted the metrics" in (push.problem or "")


def test_a_missing_collector_is_logged_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    tried = threading.Semaphore(0)

    def refuse(_: object, __: object) -> None:
        tried.release()
        raise ServerError("no collector accepted the metrics")

    monkeypatch.setattr("traincope_exporters.otlp.collector.Collector.send_metrics", refuse)
    push = OtlpPush(Address(endpoint=None, protocol="http", timeout_seconds=1), run="r", host="h", start_ns=0)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            push.push(SAMPLES)
            tried.acquire()
        push.close(timeout_seconds=90)
    assert [record.message for record in caplog.records] == [
        "no collector accepted the metrics; samples are dropped until one answers"
    ]
    assert push.dropped == 3


def test_a_push_never_waits_and_keeps_the_newest_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second and third message come while the first is being sent: the second is dropped."""
    under_way, go_on, sent = threading.Event(), threading.Event(), []

    def slow(_: object, data: object) -> None:
        sent.append(data)
        under_way.set()
        go_on.wait()

    monkeypatch.setattr("traincope_exporters.otlp.collector.Collector.send_metrics", slow)
    push = OtlpPush(Address(endpoint=None, protocol="http", timeout_seconds=1), run="r", host="h", start_ns=0)
    push.push(SAMPLES)
    under_way.wait()
    push.push(SAMPLES)
    push.push(SAMPLES)
    go_on.set()
    push.close(timeout_seconds=90)
    assert (len(sent), push.sent, push.dropped) == (2, 2, 1)


def test_a_push_after_the_end_is_dropped(closed_port: str) -> None:
    push = OtlpPush(Address(endpoint=closed_port, protocol="http", timeout_seconds=0.3), run="r", host="h", start_ns=0)
    push.close(timeout_seconds=90)
    push.push(SAMPLES)
    assert push.dropped == 1


def target(endpoint: str | None = None, protocol: str | None = None) -> tuple[str, str]:
    result = Target.of(Address(endpoint=endpoint, protocol=protocol, timeout_seconds=1))
    return result.url, result.protocol


def test_the_default_address_is_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_PROTOCOL", raising=False)
    assert target() == ("http://127.0.0.1:4317", "grpc")
    assert target(protocol="http") == ("http://127.0.0.1:4318", "http")
    assert target("http://collector:4318/") == ("http://collector:4318", "http")
    assert target("https://collector:443") == ("https://collector:443", "grpc")


def test_the_variables_of_opentelemetry_set_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://there:4000")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    assert target() == ("http://there:4000", "http")
    assert target("http://here:1", "grpc") == ("http://here:1", "grpc")


@pytest.mark.parametrize(
    "endpoint",
    ["collector:4317", "ftp://collector", "http://", "/tmp/socket", "http://[::1", "http://a:b", "http://a:70000"],
)
def test_an_invalid_url_is_refused(endpoint: str) -> None:
    with pytest.raises(UsageError, match="is not the URL of a collector"):
        target(endpoint)


def test_an_unknown_compression_is_one_sentence(closed_port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "middle-out")
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_COMPRESSION: set it to gzip or unset it"):
        Collector(Target(url=closed_port, protocol="grpc", timeout_seconds=0.3)).send_spans([])


def test_a_run_without_events_is_refused_before_sending(closed_port: str) -> None:
    with pytest.raises(RunDirectoryError, match="holds no records"):
        send(timeline(), Address(endpoint=closed_port, protocol="grpc", timeout_seconds=0.3))
