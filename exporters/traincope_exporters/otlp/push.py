"""Push of a running job to a collector: samples as metrics, the newest step as spans, faults as logs.

An unreachable collector does not slow the job. Span ids equal those of the finished run. Spans above steps end with the
run and are sent when it is over (`send_outline`).
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence

from traincope.analysis import Analysis
from traincope.errors import ConfigError, ServerError
from traincope.metrics.sample import Sample
from traincope.report.exports import Address
from traincope_exporters.otlp.collector import Collector, Target, batched
from traincope_exporters.otlp.identity import resource
from traincope_exporters.otlp.logs import logs
from traincope_exporters.otlp.metrics import metrics_data
from traincope_exporters.otlp.sampling import newest_step
from traincope_exporters.otlp.spans import step_spans

_logger = logging.getLogger(__name__)

MAX_PENDING_ANALYSES = 8
"""Maximum number of analyses that wait to be sent. They hold the events of their steps."""


class OtlpPush:
    """Thread that sends the newest samples.

    `push` never waits and never raises. Samples are cumulative: if the collector is slow, older samples are dropped and
    counted.
    """

    def __init__(self, address: Address, *, run: str, host: str, start_ns: int) -> None:
        """`start_ns`: wall time at which counters start. Raises UsageError if the endpoint is not a URL."""
        self.sent = 0
        """Number of accepted messages."""
        self.dropped = 0
        """Number of messages that were not sent."""
        self.problem: str | None = None
        """Reason why the last message was not accepted; None if it was."""
        self._collector = Collector(Target.of(address))
        self.where = self._collector.target.url
        self._resource = resource(f"{run}/{host}", {"traincope.run": run, "host.name": host})
        self._start_ns = start_ns
        self._newest: tuple[int, Sequence[Sample]] | None = None
        self._pending: deque[Analysis] = deque(maxlen=MAX_PENDING_ANALYSES)
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="traincope-otlp", daemon=True)
        self._thread.start()

    def push(self, samples: Sequence[Sample]) -> None:
        """Send these samples with the current time as soon as possible."""
        with self._changed:
            if self._newest is not None or not self._thread.is_alive():
                self.dropped += 1
            self._newest = (time.time_ns(), samples)
            self._changed.notify()

    def follow(self, analysis: Analysis) -> None:
        """Send the newest step of this analysis and its `faults` with the next samples. Never waits."""
        with self._changed:
            self._pending.append(analysis)

    def close(self, timeout_seconds: float) -> None:
        """Send the last samples if the time suffices."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_seconds)
        if not self._thread.is_alive():
            self._collector.close()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._newest is not None)
                newest, self._newest = self._newest, None
                if newest is None:
                    return
                analyses = tuple(self._pending)
                self._pending.clear()
            self._send(*newest, analyses)

    def _send(self, at_ns: int, samples: Sequence[Sample], analyses: Sequence[Analysis]) -> None:
        data = metrics_data(samples, resource=self._resource, start_ns=self._start_ns, at_ns=at_ns)
        try:
            self._collector.send_metrics(data)
            self._send_spans_and_logs(analyses)
        except (ServerError, ConfigError) as error:
            self.dropped += 1
            if self.problem is None:
                _logger.warning("%s; samples are dropped until one answers", error)
            self.problem = str(error)
        else:
            self.sent += 1
            self.problem = None

    def _send_spans_and_logs(self, analyses: Sequence[Analysis]) -> None:
        """Send pending steps and faults. Raises ServerError."""
        sampled = newest_step(analyses[-1]) if analyses else frozenset()
        records = [record for analysis in analyses for record in logs(analysis, sampled=sampled)]
        if sampled:
            for batch in batched(step_spans(analyses[-1], sampled=sampled)):
                self._collector.send_spans(batch)
        for log_batch in batched(records):
            self._collector.send_logs(log_batch)
