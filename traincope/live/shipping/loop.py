"""The agent's shipping: a thread that does a round per interval, and the last round once the host's ranks are over.

The thread never delays the agent's looks. A destination that does not answer costs only the shipping.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from traincope.errors import TraincopeError
from traincope.live.shipping.exchange import pull_requests, push_addresses
from traincope.live.shipping.limits import ShipSettings
from traincope.live.shipping.selecting import is_over
from traincope.live.shipping.shipper import Shipper
from traincope.live.shipping.targets import Target
from traincope.record.instrumentation.guard import guard
from traincope.store.layout import host_in_a_name
from traincope.topology import Host

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5
PULL_SECONDS = 1.0
MAX_PAUSE_SECONDS = 120.0
"""Longest pause after a destination failed repeatedly."""


class ShippingLoop:
    """Ships one attempt of a run on this host to all of its destinations."""

    def __init__(
        self,
        run: Path,
        *,
        attempt: int,
        host: Host,
        targets: Sequence[Target],
        settings: ShipSettings,
        named: Path | None,
    ) -> None:
        """`named`: the run directory that users know, if the records are elsewhere. Raises OSError."""
        self._run, self._attempt, self._host, self._settings, self._named = run, attempt, host, settings, named
        self._lines = [
            _Line(Shipper(run, attempt=attempt, host=host, target=target, settings=settings), settings=settings)
            for target in targets
        ]
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=guard(self._repeat), name="shipping", daemon=True)

    def start(self) -> None:
        """Note at once that no destination has all records: a process may look before the first round there."""
        for line in self._lines:
            line.note_begin()
        self._thread.start()

    def finish(self, *, within_seconds: float, is_stopping: Callable[[], bool] = bool) -> bool:
        """Ship the rest, and end. A destination that fails is tried again until the time is over or `is_stopping`.

        Returns whether all files arrived and no rank of this host writes any more. Other files stay on the node.
        """
        until = time.monotonic() + within_seconds
        self._stopping.set()

        def is_ended() -> bool:
            return time.monotonic() > until or is_stopping()

        while self._thread.is_alive() and not is_ended():
            self._thread.join(POLL_SECONDS)
        if self._thread.is_alive():
            return False
        over = is_over(self._run, self._host, attempt=self._attempt)
        left, again = self._lines, True
        while left and (again or not is_ended()):
            left = [
                line
                for line in left
                if not line.try_round(last=over, again=again, is_ending=True, is_stopping=is_ended)
            ]
            again = False
            if left:
                time.sleep(POLL_SECONDS)
        return over and not left

    def _repeat(self) -> None:
        pulled_at, was_over = 0.0, False
        while not self._stopping.wait(POLL_SECONDS):
            now = time.monotonic()
            over = is_over(self._run, self._host, attempt=self._attempt)
            for line in self._lines:
                line.try_round(last=over, again=over and not was_over, is_stopping=self._stopping.is_set)
            was_over = over
            if self._named is not None and now - pulled_at > PULL_SECONDS:
                pulled_at = now
                self._exchange(self._named)

    def _exchange(self, named: Path) -> None:
        try:
            pull_requests(named, self._run, attempt=self._attempt)
            push_addresses(self._run, named, attempt=self._attempt, host_name=host_in_a_name(self._host.name))
        except OSError as error:
            logger.debug("requests in %s cannot be read: %s", named, error)


class _Line:
    """Shipping to one destination. It pauses longer after each failure."""

    def __init__(self, shipper: Shipper, *, settings: ShipSettings) -> None:
        self._shipper, self._settings = shipper, settings
        self._due_at = 0.0
        self._failures = 0

    def note_begin(self) -> None:
        guard(self._shipper.note_begin)()

    def try_round(self, *, last: bool, again: bool, is_stopping: Callable[[], bool], is_ending: bool = False) -> bool:
        """Do a round if it is due. Returns whether all arrived. `again`: it is due now, because the ranks are over."""
        if time.monotonic() < self._due_at and not again:
            return False
        self._due_at = time.monotonic() + self._settings.interval_seconds
        return self._try(last=last, is_over=is_stopping, is_ending=is_ending)

    def _try(self, *, last: bool, is_over: Callable[[], bool], is_ending: bool) -> bool:
        try:
            done = self._shipper.round(last=last, is_over=is_over, is_ending=is_ending)
        except (TraincopeError, OSError) as error:
            self._failures += 1
            pause = min(self._settings.interval_seconds * 2**self._failures, MAX_PAUSE_SECONDS)
            self._due_at = time.monotonic() + pause
            if self._failures == 1:
                logger.warning("%s: files stay on this node for now: %s", self._shipper.place, error)
            guard(self._shipper.note_failure)(str(error))
            return False
        if self._failures:
            logger.warning("%s answers again", self._shipper.place)
        self._failures = 0
        return not done.left_files
