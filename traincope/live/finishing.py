"""Gives the run to the exporters that take it whole, once its job is over: that of rank 0's agents does so."""

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from traincope.errors import TraincopeError
from traincope.live.leaving import MOST_RECORDS, PATIENCE_SECONDS, num_records, will_be_over
from traincope.record.guard import guard
from traincope.timeline import Timeline, open_run
from traincope_exporters.live import Finish, finishing

logger = logging.getLogger(__name__)


def finish(
    run: Path,
    *,
    attempt: int,
    environment: Mapping[str, str] = os.environ,
    patience_seconds: float = PATIENCE_SECONDS,
) -> None:
    """Ranks of other hosts may end a little later. Nothing is raised: what cannot be is logged."""
    asked = {name: tell for name, load in finishing() if (tell := _asked(name, load, environment)) is not None}
    try:
        if not asked or not will_be_over(run, attempt, within_seconds=patience_seconds):
            return
        if num_records(run, attempt) > MOST_RECORDS:
            logger.warning("%s is too much to be read whole: see traincope export", run)
            return
        timeline = open_run(run)
    except (TraincopeError, OSError) as error:
        logger.warning("%s cannot be read, so it is not told as a whole: %s", run, error)
        return
    for name, tell in asked.items():
        _tell(name, tell, timeline)


def _asked(name: str, load: Callable[[], Finish], environment: Mapping[str, str]) -> Callable[[Timeline], None] | None:
    """None also where it cannot be; the exporter has said why when the job began."""

    def ask() -> Callable[[Timeline], None] | None:
        try:
            return load()(environment)
        except TraincopeError as error:
            logger.warning("%s: %s", name, error)
            return None

    return guard(ask)()


def _tell(name: str, tell: Callable[[Timeline], None], timeline: Timeline) -> None:
    def told() -> None:
        try:
            tell(timeline)
        except TraincopeError as error:
            logger.warning("%s: %s", name, error)

    guard(told)()
