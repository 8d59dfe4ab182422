"""A running job's numbers to a collector: when they are asked for, as often as it is said, the last ones too."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from tests.exporters.receiver import attributes, collector
from traincope import metrics
from traincope.errors import ConfigError, TraincopeError, UsageError
from traincope.metrics import Sample
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
