"""Push of a running job to a collector: configuration, interval, final samples."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from tests.exporters.otlp.receiver import attributes, collector
from tests.exporters.runs import two_ranks
from traincope import analyze
from traincope.analysis import Fault, FaultKind
from traincope.errors import ConfigError, TraincopeError, UsageError
from traincope.live.serve.exporters import Following
from traincope.metrics import catalogue
from traincope.metrics.sample import Sample
from traincope_exporters.otlp.pushing import Pushing, start
from traincope_exporters.otlp.sampling import newest_step
from traincope_exporters.otlp.spans import spans


@dataclass(frozen=True)
class Job:
    run: str = "my-run"
    host: str = "node-1"
    began_ns: int = 7


class Source:
    """Source whose last step grows by one per call. `asked` is set at call number `times`."""

    def __init__(self, times: int) -> None:
        self.asked, self._times, self.step = threading.Event(), times, 0

    def __call__(self) -> Sequence[Sample]:
        self.step += 1
        if self.step == self._times:
            self.asked.set()
        return [Sample(metric=catalogue.LAST_STEP, labels=("my-run", "node-1", "0"), value=self.step)]


def started(source: Source, **environment: str) -> Pushing | None:
    return start(source, origin=Job(), environment=environment)


@pytest.mark.parametrize("resource", [{}, {"TRAINCOPE_OTLP": "off"}, {"TRAINCOPE_OTLP": ""}])
def test_push_is_off_by_default(resource: dict[str, str]) -> None:
    assert started(Source(1), **resource) is None


def test_samples_are_sent_repeatedly_and_at_the_end() -> None:
    source = Source(3)
    with collector("grpc") as result:
        pushing = started(source, TRAINCOPE_OTLP=result.url, OTEL_METRIC_EXPORT_INTERVAL="20")
        assert pushing is not None
        assert pushing.where == result.url
        source.asked.wait()
        pushing.stop()
    steps = [sent.gauge.data_points[0].as_int for _, sent in result.each_metric()]
    assert len(steps) > 1
    assert steps == sorted(steps)
    assert steps[-1] == source.step
    resource, sent = next(result.each_metric())
    assert (resource["traincope.run"], resource["host.name"]) == ("my-run", "node-1")
    assert attributes(sent.gauge.data_points[0].attributes) == {"run": "my-run", "host": "node-1", "rank": "0"}


def test_the_newest_step_and_faults_are_sent_with_the_next_samples() -> None:
    """The spans have the ids of the finished run's spans. An older analysis sends only its faults."""
    whole = analyze(two_ranks())
    spike = Fault(kind=FaultKind.SPIKE, at_ns=1990, ranks=(0,), step=1, what="loss jumps to 9")
    broken = Fault(kind=FaultKind.NOT_FINITE, at_ns=2990, ranks=(1,), step=2, what="loss is NaN")
    source = Source(1)
    with collector("grpc") as result:
        pushing = started(source, TRAINCOPE_OTLP=result.url, OTEL_METRIC_EXPORT_INTERVAL="1000000")
        assert isinstance(pushing, Following)
        pushing.follow(replace(whole, faults=(spike,)))
        pushing.follow(replace(whole, faults=(broken,)))
        pushing.stop()
    sent = [
        (resource["traincope.rank"], span.name, int.from_bytes(span.span_id, "big"))
        for resource, span in result.each_span()
    ]
    names = ["step", "forward GPT", "all_gather", "wait for all_gather"]
    assert sorted((rank, name) for rank, name, _ in sent) == sorted((rank, name) for rank in (0, 1) for name in names)
    later = {span.context.span_id for span in spans(whole)}
    assert {span_id for _, _, span_id in sent} < later
    assert {span.attributes[0].value.int_value for _, span in result.each_span() if span.name == "step"} == {2}
    span_of = {log.body.string_value: int.from_bytes(log.span_id, "big") for _, log in result.each_log()}
    assert set(span_of) == {"loss jumps to 9", "loss is NaN"}
    assert span_of["loss is NaN"] == next(span_id for rank, name, span_id in sent if (rank, name) == (1, "step"))


def test_a_step_with_too_many_events_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traincope_exporters.otlp.sampling.MAX_LIVE_SPANS", 7)
    assert newest_step(analyze(two_ranks())) == frozenset()
    monkeypatch.setattr("traincope_exporters.otlp.sampling.MAX_LIVE_SPANS", 8)
    assert newest_step(analyze(two_ranks())) == {2}


def test_on_uses_the_variables_of_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    pushing = started(Source(1), TRAINCOPE_OTLP="on", OTEL_EXPORTER_OTLP_TIMEOUT="0.1")
    assert pushing is not None
    assert pushing.where == "http://127.0.0.1:9"
    pushing.stop()


@pytest.mark.parametrize(
    ("environment", "error", "sentence"),
    [
        ({"TRAINCOPE_OTLP": "collector"}, UsageError, "is not the URL of a collector"),
        (
            {"TRAINCOPE_OTLP": "http://there", "OTEL_METRIC_EXPORT_INTERVAL": "often"},
            ConfigError,
            "OTEL_METRIC_EXPORT_INTERVAL=often is not a number above 0",
        ),
        (
            {"TRAINCOPE_OTLP": "http://there", "OTEL_EXPORTER_OTLP_TIMEOUT": "-1"},
            ConfigError,
            "OTEL_EXPORTER_OTLP_TIMEOUT=-1 is not a number above 0",
        ),
    ],
)
def test_an_invalid_setting_is_one_sentence(
    environment: dict[str, str], error: type[TraincopeError], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        started(Source(1), **environment)
