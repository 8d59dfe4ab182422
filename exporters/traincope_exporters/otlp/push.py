"""A running job to a collector, for where nothing can scrape: samples, its newest step as spans, faults as logs.

A dead collector costs nothing. Spans have the ids that those of the finished run have. Those above steps end with the
run, and are sent when it is over (`send_outline`).
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence

from traincope.analysis import Analysis
from traincope.errors import ConfigError, ServerError
from traincope.metrics import Sample
from traincope_exporters.exports import Address
from traincope_exporters.otlp.collector import Collector, Target, batched
from traincope_exporters.otlp.identity import resource
from traincope_exporters.otlp.logs import logs
from traincope_exporters.otlp.metrics import metrics_data
from traincope_exporters.otlp.sampling import newest_step
from traincope_exporters.otlp.spans import step_spans

_logger = logging.getLogger(__name__)

MOST_LOOKS = 8
"""That wait to be sent; they hold the records of their steps."""


class OtlpPush:
    """Sends the newest samples from a thread of its own.

    `push` never waits and never raises: samples are cumulative, so those that a slow collector has not taken by the
    time newer ones come are dropped, and counted.
    """

    def __init__(self, address: Address, *, run: str, host: str, start_ns: int) -> None:
        """`start_ns`: wall time since when counters count. Raises UsageError for an endpoint that is none."""
        self.sent = 0
        """Times that a collector took them."""
        self.dropped = 0
        """Times that they were not sent."""
        self.problem: str | None = None
        """Why they were not taken last; None: they were."""
        self._collector = Collector(Target.of(address))
        self.where = self._collector.target.url
        self._resource = resource(f"{run}/{host}", {"traincope.run": run, "host.name": host})
        self._start_ns = start_ns
        self._newest: tuple[int, Sequence[Sample]] | None = None
        self._looks: deque[Analysis] = deque(maxlen=MOST_LOOKS)
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="traincope-otlp", daemon=True)
        self._thread.start()

    def push(self, samples: Sequence[Sample]) -> None:
        """Send them, as of now, when there is time."""
        with self._changed:
            if self._newest is not None or not self._thread.is_alive():
                self.dropped += 1
            self._newest = (time.time_ns(), samples)
            self._changed.notify()

    def follow(self, analysis: Analysis) -> None:
        """Send the newest step of a look at the job, and its `faults`, with the next samples. Never waits."""
        with self._changed:
            self._looks.append(analysis)

    def close(self, timeout_seconds: float) -> None:
        """Send what was pushed last, if it can be done in this time."""
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
                looks = tuple(self._looks)
                self._looks.clear()
            self._send(*newest, looks)

    def _send(self, at_ns: int, samples: Sequence[Sample], looks: Sequence[Analysis]) -> None:
        data = metrics_data(samples, resource=self._resource, start_ns=self._start_ns, at_ns=at_ns)
        try:
            self._collector.send_metrics(data)
            self._send_found(looks)
        except (ServerError, ConfigError) as error:
            self.dropped += 1
            if self.problem is None:
                _logger.warning("%s; samples are dropped until it is there", error)
            self.problem = str(error)
        else:
            self.sent += 1
            self.problem = None

    def _send_found(self, looks: Sequence[Analysis]) -> None:
        """Raises ServerError."""
        sampled = newest_step(looks[-1]) if looks else frozenset()
        told = [record for look in looks for record in logs(look, sampled=sampled)]
        if sampled:
            for batch in batched(step_spans(looks[-1], sampled=sampled)):
                self._collector.send_spans(batch)
        for some in batched(told):
            self._collector.send_logs(some)
