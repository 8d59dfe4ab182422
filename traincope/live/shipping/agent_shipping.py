"""Shipping of one agent: begins with it, and ends with the removal of what is no longer needed on the node."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from traincope.errors import RunDirectoryError, TraincopeError
from traincope.live.shipping.destinations import destinations
from traincope.live.shipping.limits import ShipSettings
from traincope.live.shipping.loop import ShippingLoop
from traincope.record.session.identity import this_host
from traincope.store.job.manifests import read_rank_info
from traincope.store.layout import attempt_directory
from traincope.store.places.node_local import remove_local

logger = logging.getLogger(__name__)

FINISH_SECONDS = 3_600.0
"""Longest last shipping after the training's end. No process of the training waits for it."""
STOPPED_SECONDS = 20.0
"""The same after a signal: what sends it, as a container's runtime, kills some seconds later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentShipping:
    """The running shipping of an agent."""

    run: Path
    attempt: int
    named: Path | None
    loop: ShippingLoop

    def finish(self, *, is_stopping: Callable[[], bool]) -> Path | None:
        """Ship the rest. Returns the run directory that users know if it now has all records of this host, and they
        are not on this node any more. `is_stopping`: whether a signal has asked the agent to end.
        """
        if is_stopping():
            arrived = self.loop.finish(within_seconds=STOPPED_SECONDS)
        else:
            arrived = self.loop.finish(within_seconds=FINISH_SECONDS, is_stopping=is_stopping)
        if not arrived:
            logger.warning("not all files were shipped; they stay in %s: run `traincope ship %s`", self.run, self.run)
        if not arrived or is_stopping() or self.named is None:
            return None
        if not self._is_of_this_host():
            logger.warning("records of other hosts share %s, so it is not removed", self.run)
            return None
        try:
            remove_local(self.run, attempt=self.attempt)
        except OSError as error:
            logger.warning("records that were shipped stay in %s: %s", self.run, error)
        return self.named

    def _is_of_this_host(self) -> bool:
        """Return whether this host's ranks alone record here: containers may share /dev/shm."""
        try:
            ranks = [read_rank_info(path) for path in attempt_directory(self.run, self.attempt).glob("rank-*")]
        except RunDirectoryError:
            return False
        return all(rank.host == this_host() for rank in ranks)

    def ship_report(self) -> None:
        """Ship the report that was written after the last round, if the run is still here."""
        if self.named is None:
            self.loop.finish(within_seconds=STOPPED_SECONDS)


def begin_shipping(run: Path, *, attempt: int, environment: Mapping[str, str]) -> AgentShipping | None:
    """Begin to ship this host's files, if the run goes anywhere. What prevents it is logged."""
    try:
        chosen = destinations(run, environment)
        targets = chosen.targets()
        if not targets:
            return None
        settings = ShipSettings.of_an_agent(environment)
        loop = ShippingLoop(
            run, attempt=attempt, host=this_host(), targets=targets, settings=settings, named=chosen.named
        )
    except (TraincopeError, OSError) as error:
        logger.warning("nothing is shipped, and the records stay in %s: %s", run, error)
        return None
    loop.start()
    return AgentShipping(run=run, attempt=attempt, named=chosen.named, loop=loop)
