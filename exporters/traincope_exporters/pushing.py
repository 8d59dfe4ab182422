"""A running job to an OpenTelemetry collector, every few seconds: for where nothing can scrape.

Its numbers go there as metrics, the newest step as spans, faults and marks as logs; when it is over, the spans above
steps, of the run, its attempts and ranks, which make one trace of it.

    TRAINCOPE_OTLP=http://collector:4317   or `on`: where the OTEL_EXPORTER_OTLP_* variables say

OTEL_METRIC_EXPORT_INTERVAL (ms), OTEL_EXPORTER_OTLP_TIMEOUT (s) and OTEL_EXPORTER_OTLP_HEADERS mean what they mean
everywhere.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from traincope.analysis import Analysis
from traincope.errors import ConfigError, MissingDependencyError
from traincope.metrics import Sample
from traincope.timeline import Timeline
from traincope_exporters.exports import Address
from traincope_exporters.live import Origin

if TYPE_CHECKING:
    from traincope_exporters.otlp.push import OtlpPush

VARIABLE = "TRAINCOPE_OTLP"
OFF, ON = ("", "off", "0", "no"), ("on", "1", "yes")
INTERVAL_VARIABLE, TIMEOUT_VARIABLE = "OTEL_METRIC_EXPORT_INTERVAL", "OTEL_EXPORTER_OTLP_TIMEOUT"
INTERVAL_MS, TIMEOUT_SECONDS = 15_000.0, 10.0
LAST_SECONDS = 1.0
"""How long the end of a job waits for what was pushed last."""


class Pushing:
    """At work, on threads of its own."""

    def __init__(self, source: Callable[[], Sequence[Sample]], push: "OtlpPush", *, every_seconds: float) -> None:
        self.where = push.where
        self._source, self._push, self._every_seconds = source, push, every_seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="traincope-otlp-clock", daemon=True)
        self._thread.start()

    def follow(self, analysis: Analysis) -> None:
        """What a look at the job found, its `faults` those that are new."""
        self._push.follow(analysis)

    def stop(self) -> None:
        """What it all came to goes out first, if a collector takes it within a second."""
        self._stopped.set()
        self._thread.join()
        self._push.push(self._source())
        self._push.close(LAST_SECONDS)

    def _work(self) -> None:
        while not self._stopped.wait(self._every_seconds):
            self._push.push(self._source())


def start(source: Callable[[], Sequence[Sample]], *, origin: Origin, environment: Mapping[str, str]) -> Pushing | None:
    """Push what `source` says until stopped; None where `environment` does not ask for it.

    Raises ConfigError for a number that is none, UsageError for what is no URL, MissingDependencyError where
    OpenTelemetry is not installed.
    """
    address = _address(environment)
    if address is None:
        return None
    every_ms = _positive(environment, INTERVAL_VARIABLE, INTERVAL_MS)
    with _explained():
        from traincope_exporters.otlp.push import OtlpPush
    push = OtlpPush(address, run=origin.run, host=origin.host, start_ns=origin.began_ns)
    return Pushing(source, push, every_seconds=every_ms / 1000)


def finish(environment: Mapping[str, str]) -> Callable[[Timeline], None] | None:
    """What makes one trace of a run that is over; None where `environment` does not ask for it. Raises as `start`."""
    address = _address(environment)
    if address is None:
        return None
    with _explained():
        from traincope_exporters.otlp import send_outline
    return lambda timeline: send_outline(timeline, address)


def _address(environment: Mapping[str, str]) -> Address | None:
    """None where it is not asked for."""
    told = environment.get(VARIABLE, "").strip()
    if told.lower() in OFF:
        return None
    timeout_seconds = _positive(environment, TIMEOUT_VARIABLE, TIMEOUT_SECONDS)
    endpoint = None if told.lower() in ON else told
    return Address(endpoint=endpoint, protocol=None, timeout_seconds=timeout_seconds)


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"{VARIABLE} needs {error.name}, which is not installed: pip install 'traincope[otel]'"
        ) from error


def _positive(environment: Mapping[str, str], variable: str, missing: float) -> float:
    told = environment.get(variable)
    if told is None:
        return missing
    try:
        value = float(told)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ConfigError(f"{variable}={told} is no number above 0")
    return value
