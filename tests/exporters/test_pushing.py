"""A running job's numbers to a collector: when they are asked for, as often as it is said, the last ones too."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from tests.exporters.receiver import attributes, collector
from tests.exporters.runs import two_ranks
from traincope import analyze, metrics
from traincope.analysis import Fault, FaultKind
from traincope.errors import ConfigError, TraincopeError, UsageError
from traincope.metrics import Sample
from traincope_exporters.live import Following
from traincope_exporters.otlp.sampling import newest_step
from traincope_exporters.otlp.spans import spans
from traincope_exporters.pushing import Pushing, start


@dataclass(frozen=True)
class Job:
    run: str = "my-run"
    host: str = "node-1"
    began_ns: int = 7


class Source:
    """Says which step is the last, one more each time; `asked` is set once it was asked `times` times."""

    def __init__(self, times: int) -> None:
        self.asked, self._times, self.step = threading.Event(), times, 0

    def __call__(self) -> Sequence[Sample]:
        self.step += 1
        if self.step == self._times:
            self.asked.set()
        return [Sample(metric=metrics.LAST_STEP, labels=("my-run", "node-1", "0"), value=self.step)]


def started(source: Source, **environment: str) -> Pushing | None:
    return start(source, origin=Job(), environment=environment)


@pytest.mark.parametrize("told", [{}, {"TRAINCOPE_OTLP": "off"}, {"TRAINCOPE_OTLP": ""}])
def test_nothing_is_pushed_unless_it_is_asked_for(told: dict[str, str]) -> None:
    assert started(Source(1), **told) is None


def test_numbers_come_again_and_again_and_the_last_ones_at_the_end() -> None:
    source = Source(3)
    with collector("grpc") as found:
        pushing = started(source, TRAINCOPE_OTLP=found.url, OTEL_METRIC_EXPORT_INTERVAL="20")
        assert pushing is not None
        assert pushing.where == found.url
        source.asked.wait()
        pushing.stop()
    steps = [sent.gauge.data_points[0].as_int for _, sent in found.each_metric()]
    assert len(steps) > 1
    assert steps == sorted(steps)
    assert steps[-1] == source.step
    told, sent = next(found.each_metric())
    assert (told["traincope.run"], told["host.name"]) == ("my-run", "node-1")
    assert attributes(sent.gauge.data_points[0].attributes) == {"run": "my-run", "host": "node-1", "rank": "0"}


def test_the_newest_step_of_a_look_and_what_happened_go_with_the_next_numbers() -> None:
    """With the ids that the finished run's spans have; of an older look what happened alone."""
    whole = analyze(two_ranks())
    spike = Fault(kind=FaultKind.SPIKE, at_ns=1990, ranks=(0,), step=1, what="loss jumps to 9")
    broken = Fault(kind=FaultKind.NOT_FINITE, at_ns=2990, ranks=(1,), step=2, what="loss is NaN")
    source = Source(1)
    with collector("grpc") as found:
        pushing = started(source, TRAINCOPE_OTLP=found.url, OTEL_METRIC_EXPORT_INTERVAL="1000000")
        assert isinstance(pushing, Following)
        pushing.follow(replace(whole, faults=(spike,)))
        pushing.follow(replace(whole, faults=(broken,)))
        pushing.stop()
    sent = [
        (told["traincope.rank"], span.name, int.from_bytes(span.span_id, "big")) for told, span in found.each_span()
    ]
    names = ["step", "forward GPT", "all_gather", "wait for all_gather"]
    assert sorted((rank, name) for rank, name, _ in sent) == sorted((rank, name) for rank in (0, 1) for name in names)
    later = {one.context.span_id for one in spans(whole)}
    assert {span_id for _, _, span_id in sent} < later
    assert {span.attributes[0].value.int_value for _, span in found.each_span() if span.name == "step"} == {2}
    said = {log.body.string_value: int.from_bytes(log.span_id, "big") for _, log in found.each_log()}
    assert set(said) == {"loss jumps to 9", "loss is NaN"}
    assert said["loss is NaN"] == next(span_id for rank, name, span_id in sent if (rank, name) == (1, "step"))


def test_a_step_of_very_many_records_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traincope_exporters.otlp.sampling.MOST_SPANS_OF_A_LOOK", 7)
    assert newest_step(analyze(two_ranks())) == frozenset()
    monkeypatch.setattr("traincope_exporters.otlp.sampling.MOST_SPANS_OF_A_LOOK", 8)
    assert newest_step(analyze(two_ranks())) == {2}


def test_on_means_where_the_variables_of_opentelemetry_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    pushing = started(Source(1), TRAINCOPE_OTLP="on", OTEL_EXPORTER_OTLP_TIMEOUT="0.1")
    assert pushing is not None
    assert pushing.where == "http://127.0.0.1:9"
    pushing.stop()


@pytest.mark.parametrize(
    ("environment", "error", "said"),
    [
        ({"TRAINCOPE_OTLP": "collector"}, UsageError, "is no URL of a collector"),
        (
            {"TRAINCOPE_OTLP": "http://there", "OTEL_METRIC_EXPORT_INTERVAL": "often"},
            ConfigError,
            "OTEL_METRIC_EXPORT_INTERVAL=often is no number above 0",
        ),
        (
            {"TRAINCOPE_OTLP": "http://there", "OTEL_EXPORTER_OTLP_TIMEOUT": "-1"},
            ConfigError,
            "OTEL_EXPORTER_OTLP_TIMEOUT=-1 is no number above 0",
        ),
    ],
)
def test_what_cannot_be_is_one_sentence(environment: dict[str, str], error: type[TraincopeError], said: str) -> None:
    with pytest.raises(error, match=said):
        started(Source(1), **environment)
