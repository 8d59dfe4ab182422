"""Export of the complete run once its job is over, by the agent of rank 0."""

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from traincope.errors import TraincopeError
from traincope.live.serve.exporters import Finish, finishing_exporters
from traincope.live.serve.tile_handoff import MAX_RECORDS, PATIENCE_SECONDS, num_records, wait_until_over
from traincope.record.instrumentation.guard import guard
from traincope.timeline import Timeline, open_run

logger = logging.getLogger(__name__)


def finish(
    run: Path,
    *,
    attempt: int,
    environment: Mapping[str, str] = os.environ,
    patience_seconds: float = PATIENCE_SECONDS,
) -> None:
    """Pass the run to the enabled exporters. Waits a little for ranks of other hosts. Errors are logged, not raised."""
    enabled = {
        name: send_run
        for name, load in finishing_exporters()
        if (send_run := _load_enabled(name, load, environment)) is not None
    }
    try:
        if not enabled or not wait_until_over(run, attempt, within_seconds=patience_seconds):
            return
        if num_records(run, attempt) > MAX_RECORDS:
            logger.warning("%s is too large for the exporters of finished runs; use `traincope export`", run)
            return
        timeline = open_run(run)
    except (TraincopeError, OSError) as error:
        logger.warning("%s cannot be read, so it is not exported: %s", run, error)
        return
    for name, send_run in enabled.items():
        _send_run(name, send_run, timeline)


def _load_enabled(
    name: str, load: Callable[[], Finish], environment: Mapping[str, str]
) -> Callable[[Timeline], None] | None:
    """Export function of one entry point;

    None if it is not enabled or fails. The exporter logged why when the job began.
    """

    def load_exporter() -> Callable[[Timeline], None] | None:
        try:
            return load()(environment)
        except TraincopeError as error:
            logger.warning("%s: %s", name, error)
            return None

    return guard(load_exporter)()


def _send_run(name: str, send_run: Callable[[Timeline], None], timeline: Timeline) -> None:
    def send() -> None:
        try:
            send_run(timeline)
        except TraincopeError as error:
            logger.warning("%s: %s", name, error)

    guard(send)()
