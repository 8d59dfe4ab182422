"""Windows that anomalies open: the agent requests the next steps in detail when something went wrong.

Bounds keep a noisy run within its budget: per cause at most one window a minute (one per attempt if the cause stays),
and in all at most `FREE_WINDOWS`, plus one for every `DRAWN_PER_WINDOW` windows that the sampling drew. A run in which
every step has detail needs none, except to count tensors where memory grows.
"""

import logging
import time
from collections.abc import Sequence

from traincope.analysis.faults.faults import Fault, FaultKind
from traincope.errors import TraincopeError
from traincope.events import BLOCK_STEPS
from traincope.live.window import Window
from traincope.store.job.requesting import request_window
from traincope.store.job.requests import PERSONS, Cause, WindowRequest, read_requests

logger = logging.getLogger(__name__)

REST_NS = 60_000_000_000
"""Least time between two windows of one cause."""
ONCE = frozenset({Cause.NOT_FINITE, Cause.MEMORY_GROWTH, Cause.THROTTLED, Cause.ECC_ERROR, Cause.XID})
"""Causes that often stay. Each opens one window per attempt."""
SAMPLED = frozenset({Cause.SLOW_STEP, Cause.STEP_TIME_CHANGE})
"""Causes whose windows show the code that is slow, by samples of Python stacks."""
FREE_WINDOWS = 8
DRAWN_PER_WINDOW = 8
NUM_STEPS = BLOCK_STEPS - 1
"""Counted steps of an anomaly's window: one block."""
CAUSES = {cause.value: cause for cause in Cause if cause not in PERSONS}
"""Kind of fault -> cause."""


class AnomalyWindows:
    """Observer that requests a window for a new fault."""

    def __init__(self) -> None:
        self._num_drawn_steps = 0
        """Steps with detail that no request asked for."""
        self._has_light_steps = False

    def observe(self, window: Window) -> None:
        requests = read_requests(window.run, attempt=window.attempt)
        self._has_light_steps |= any(not row.terms for row in window.rows)
        detailed = {row.step for row in window.rows if row.terms}
        self._num_drawn_steps += sum(not _covered(step, requests) for step in detailed)
        fault = self._chosen(window, requests)
        if fault is None:
            return
        try:
            request = request_window(
                window.run,
                num_steps=NUM_STEPS,
                cause=CAUSES[fault.kind],
                at_step=fault.step,
                stacks=_sampled_ranks(fault, window),
            )
        except TraincopeError as error:
            logger.warning("no window was opened for %s: %s", fault.what, error)
        else:
            logger.info("steps %d to %d: %s", request.first_step + 1, request.last_step, request.reason)

    def close(self) -> None:
        """Do nothing: requests stay."""

    def _chosen(self, window: Window, requests: Sequence[WindowRequest]) -> Fault | None:
        """The fault that opens a window, rare causes first; None if there is none or the bounds forbid it."""
        automatic = [request for request in requests if request.cause not in PERSONS]
        allowed = FREE_WINDOWS + self._num_drawn_steps // (DRAWN_PER_WINDOW * BLOCK_STEPS)
        if window.last or len(automatic) >= allowed:
            return None
        candidates = [
            fault
            for fault in window.faults
            if fault.kind in CAUSES
            and (self._has_light_steps or fault.kind is FaultKind.MEMORY_GROWTH)  # its window also counts tensors
            and (fault.kind is FaultKind.MEMORY_GROWTH or fault.step is None or not _covered(fault.step, requests))
            and _is_due(CAUSES[fault.kind], automatic)
        ]
        return min(candidates, key=lambda fault: (CAUSES[fault.kind] not in ONCE, fault.at_ns), default=None)


def _sampled_ranks(fault: Fault, window: Window) -> tuple[int, ...]:
    """The rank that was slow and one that was not: both sample their stacks. Empty if no rank was named."""
    if CAUSES[fault.kind] not in SAMPLED or len(fault.ranks) != 1:
        return ()
    peers = sorted({status.rank for status in window.ranks if not status.over} - set(fault.ranks))
    return (*fault.ranks, *peers[:1]) if peers else ()


def _is_due(cause: Cause, automatic: Sequence[WindowRequest]) -> bool:
    same = [request for request in automatic if request.cause is cause]
    if cause in ONCE:
        return not same
    return not same or time.time_ns() - max(request.at_wall_ns for request in same) >= REST_NS


def _covered(step: int, requests: Sequence[WindowRequest]) -> bool:
    """Return whether a request asked for the step. A traced step is longer: it must not open the next window."""
    return any(request.covers(step) or request.delays(step) for request in requests)
