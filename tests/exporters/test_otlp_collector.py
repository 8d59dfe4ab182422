"""Where to send, and a collector that is not there: bounded time, one sentence, nothing raised into an agent."""

import logging
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.exporters.runs import two_ranks
from tests.timeline.build import timeline
from traincope import metrics
from traincope.errors import ConfigError, RunDirectoryError, ServerError, UsageError
from traincope.metrics import Sample
from traincope_exporters.exports import Address
from traincope_exporters.otlp import OtlpPush, send
from traincope_exporters.otlp.collector import Collector, Target

SAMPLES = [Sample(metric=metrics.LAST_STEP, labels=("r", "h", "0"), value=1)]


@pytest.fixture
def nobody() -> Iterator[str]:
    """A port on which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def mute() -> Iterator[str]:
    """A port that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_nobody_there_is_one_sentence(nobody: str, protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ServerError) as raised:
        send(two_ranks(), Address(endpoint=nobody, protocol=protocol, timeout_seconds=0.5))
    assert f"no collector took the spans at {nobody} ({protocol})" in str(raised.value)
    assert "Failed to export" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert raised.value.exit_code == 9
    assert caplog.records == []


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_one_that_never_answers_is_given_up(mute: str, protocol: str) -> None:
    with pytest.raises(ServerError, match="no collector took the spans"):
        send(two_ranks(), Address(endpoint=mute, protocol=protocol, timeout_seconds=0.5))


def test_a_push_to_nobody_is_dropped_and_counted(nobody: str) -> None:
    push = OtlpPush(Address(endpoint=nobody, protocol="http", timeout_seconds=0.3), run="r", host="h", start_ns=0)
    for _ in range(3):
        push.push(SAMPLES)
    push.close(timeout_seconds=20)
    assert (push.sent, push.dropped) == (0, 3)
    assert "no collector took the metrics" in (push.problem or "")


def test_a_collector_that_stays_away_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = threading.Semaphore(0)

    def refuse(_: object, __: object) -> None:
        tried.release()
        raise ServerError("no collector took the metrics")

    monkeypatch.setattr("traincope_exporters.otlp.collector.Collector.send_metrics", refuse)
    push = OtlpPush(Address(endpoint=None, protocol="http", timeout_seconds=1), run="r", host="h", start_ns=0)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            push.push(SAMPLES)
            tried.acquire()
        push.close(timeout_seconds=20)
    assert [record.message for record in caplog.records] == [
        "no collector took the metrics; samples are dropped until it is there"
    ]
    assert push.dropped == 3


def test_a_push_waits_for_nobody_and_keeps_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the first is under way, the second and third come: the second is dropped."""
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
    push.close(timeout_seconds=20)
    assert (len(sent), push.sent, push.dropped) == (2, 2, 1)


def test_a_push_after_the_end_is_dropped_and_raises_nothing(nobody: str) -> None:
    push = OtlpPush(Address(endpoint=nobody, protocol="http", timeout_seconds=0.3), run="r", host="h", start_ns=0)
    push.close(timeout_seconds=20)
    push.push(SAMPLES)
    assert push.dropped == 1


def target(endpoint: str | None = None, protocol: str | None = None) -> tuple[str, str]:
    found = Target.of(Address(endpoint=endpoint, protocol=protocol, timeout_seconds=1))
    return found.url, found.protocol


def test_where_nothing_is_said_it_is_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_PROTOCOL", raising=False)
    assert target() == ("http://127.0.0.1:4317", "grpc")
    assert target(protocol="http") == ("http://127.0.0.1:4318", "http")
    assert target("http://collector:4318/") == ("http://collector:4318", "http")
    assert target("https://collector:443") == ("https://collector:443", "grpc")


def test_the_environment_says_where_as_for_every_opentelemetry_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://there:4000")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    assert target() == ("http://there:4000", "http")
    assert target("http://here:1", "grpc") == ("http://here:1", "grpc")


@pytest.mark.parametrize(
    "endpoint",
    ["collector:4317", "ftp://collector", "http://", "/tmp/socket", "http://[::1", "http://a:b", "http://a:70000"],
)
def test_what_is_no_url_is_refused(endpoint: str) -> None:
    with pytest.raises(UsageError, match="is no URL of a collector"):
        target(endpoint)


def test_a_compression_that_there_is_not_is_said_in_a_sentence(nobody: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "middle-out")
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_COMPRESSION: say gzip, or nothing"):
        Collector(Target(url=nobody, protocol="grpc", timeout_seconds=0.3)).send_spans([])


def test_a_run_without_records_is_refused_before_anything_is_sent(nobody: str) -> None:
    with pytest.raises(RunDirectoryError, match="holds no records"):
        send(timeline(), Address(endpoint=nobody, protocol="grpc", timeout_seconds=0.3))
