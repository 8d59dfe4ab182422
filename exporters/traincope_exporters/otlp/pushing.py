"""Live exporter that pushes a running job to an OpenTelemetry collector, for jobs that cannot be scraped.

Every few seconds it sends samples as metrics, the newest step as spans, faults and marks as logs. At the end it sends
the spans of the run, its attempts and ranks, which connect all spans to one trace.

    TRAINCOPE_OTLP=http://collector:4317   or `on`: the address of the OTEL_EXPORTER_OTLP_* variables

OTEL_METRIC_EXPORT_INTERVAL (ms), OTEL_EXPORTER_OTLP_TIMEOUT (s) and OTEL_EXPORTER_OTLP_HEADERS have their usual
meaning.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from traincope.analysis import Analysis
from traincope.errors import ConfigError
from traincope.live.serve.exporters import Origin
from traincope.metrics.sample import Sample
from traincope.report.exports import Address
from traincope.timeline import Timeline
from traincope_exporters.otlp import requiring_packages

if TYPE_CHECKING:
    from traincope_exporters.otlp.push import OtlpPush

VARIABLE = "TRAINCOPE_OTLP"
OFF, ON = ("", "off", "0", "no"), ("on", "1", "yes")
INTERVAL_VARIABLE, TIMEOUT_VARIABLE = "OTEL_METRIC_EXPORT_INTERVAL", "OTEL_EXPORTER_OTLP_TIMEOUT"
INTERVAL_MS, TIMEOUT_SECONDS = 15_000.0, 10.0
LAST_SECONDS = 1.0
"""Maximum time that the end of a job waits for the last message."""


class Pushing:
    """Running exporter, with threads of its own."""

    def __init__(self, source: Callable[[], Sequence[Sample]], push: "OtlpPush", *, every_seconds: float) -> None:
        self.where = push.where
        self._source, self._push, self._every_seconds = source, push, every_seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="traincope-otlp-clock", daemon=True)
        self._thread.start()

    def follow(self, analysis: Analysis) -> None:
        """Pass on the analysis of a look. Its `faults` are the new ones."""
        self._push.follow(analysis)

    def stop(self) -> None:
        """Send the final samples, if a collector accepts them within `LAST_SECONDS`."""
        self._stopped.set()
        self._thread.join()
        self._push.push(self._source())
        self._push.close(LAST_SECONDS)

    def _work(self) -> None:
        while not self._stopped.wait(self._every_seconds):
            self._push.push(self._source())


def start(source: Callable[[], Sequence[Sample]], *, origin: Origin, environment: Mapping[str, str]) -> Pushing | None:
    """Push the samples of `source` until stopped; None if `environment` does not enable it.

    Raises ConfigError for an invalid number, UsageError for an invalid URL, MissingDependencyError if OpenTelemetry is
    not installed.
    """
    address = _address(environment)
    if address is None:
        return None
    every_ms = _positive(environment, INTERVAL_VARIABLE, INTERVAL_MS)
    with requiring_packages(VARIABLE):
        from traincope_exporters.otlp.push import OtlpPush
    push = OtlpPush(address, run=origin.run, host=origin.host, start_ns=origin.began_ns)
    return Pushing(source, push, every_seconds=every_ms / 1000)


def finish(environment: Mapping[str, str]) -> Callable[[Timeline], None] | None:
    """Function that completes a finished run's trace; None if `environment` does not enable it. Raises as `start`."""
    address = _address(environment)
    if address is None:
        return None
    with requiring_packages(VARIABLE):
        from traincope_exporters.otlp.finished import send_outline
    return lambda timeline: send_outline(timeline, address)


def _address(environment: Mapping[str, str]) -> Address | None:
    """Address of the collector; None if the exporter is not enabled."""
    value_text = environment.get(VARIABLE, "").strip()
    if value_text.lower() in OFF:
        return None
    timeout_seconds = _positive(environment, TIMEOUT_VARIABLE, TIMEOUT_SECONDS)
    endpoint = None if value_text.lower() in ON else value_text
    return Address(endpoint=endpoint, protocol=None, timeout_seconds=timeout_seconds)


def _positive(environment: Mapping[str, str], variable: str, missing: float) -> float:
    value_text = environment.get(variable)
    if value_text is None:
        return missing
    try:
        value = float(value_text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ConfigError(f"{variable}={value_text} is not a number above 0")
    return value
