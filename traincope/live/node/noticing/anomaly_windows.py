"""Windows that anomalies open: the agent requests the next steps in detail when something went wrong.

Bounds keep a noisy run within its budget: per cause at most one window a minute (one per attempt if the cause stays),
and in all at most `FREE_WINDOWS`, plus one for every `DRAWN_PER_WINDOW` windows that the sampling drew. A run in which
every step has detail needs none, except to count tensors where memory grows, and to sample a late rank's stack.
"""

import logging
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence

import numpy as np

from traincope.analysis.attribution.terms import COMPUTE
from traincope.analysis.faults.faults import Fault, FaultKind
from traincope.analysis.stragglers.own_work import OWN_WORK
from traincope.errors import TraincopeError
from traincope.events import BLOCK_STEPS
from traincope.live.window import Window
from traincope.store.job.requesting import request_window
from traincope.store.job.requests import PERSONS, PHRASES, Cause, WindowRequest, read_requests
from traincope.store.side_tables.rows import Row
from traincope.topology import PIPELINE_AXIS

logger = logging.getLogger(__name__)

REST_NS = 60_000_000_000
"""Least time between two windows of one cause."""
ONCE = frozenset({Cause.NOT_FINITE, Cause.LATE_RANK, Cause.MEMORY_GROWTH, Cause.THROTTLED, Cause.ECC_ERROR, Cause.XID})
"""Causes that often stay. Each opens one window per attempt."""
SAMPLED = frozenset({Cause.SLOW_STEP, Cause.STEP_TIME_CHANGE})
"""Causes whose windows show the code that is slow, by samples of Python stacks."""
FREE_WINDOWS = 8
DRAWN_PER_WINDOW = 8
NUM_STEPS = BLOCK_STEPS - 1
"""Counted steps of an anomaly's window: one block."""
LATE_STEPS = 3 * BLOCK_STEPS - 1
"""Counted steps of a late rank's window: in six steps only a very even delay is significant."""
CAUSES = {cause.value: cause for cause in Cause if cause not in PERSONS}
"""Kind of fault -> cause."""
NUM_REMEMBERED = 64
"""Number of latest steps with detail that are remembered."""
MIN_STEPS = 8
LATE = 0.05
"""Share of the step by which the rank's own work is longer, and its waits are shorter, than the others'."""
STANDARD_ERRORS = 3.0
"""Standard errors of the mean by which its own work is longer. A rank that works longer in each second step is late,
one that was slow in one step is not.
"""


class LateRank:
    """Own work and waits of each rank in the latest steps with detail: one that the others seem to wait for gets a
    window, which shows where its Python stands.

    The test is coarse, because it accuses no rank: the report judges by all steps and by the samples.
    """

    def __init__(self) -> None:
        self._steps: dict[int, deque[tuple[int, int, int, int]]] = defaultdict(lambda: deque(maxlen=NUM_REMEMBERED))

    def judge(self, rows: Iterable[Row]) -> int | None:
        """Add rows. Return the rank that seems late; None without one."""
        for row in rows:
            if row.terms and row.step > 0 and row.num_steps == 1:
                own_ns = sum(row.terms.get(term, 0) for term in (*COMPUTE, *OWN_WORK))
                waits_ns = sum(ns for term, ns in row.terms.items() if term.startswith("exposed_"))
                self._steps[row.rank].append((row.step, own_ns, waits_ns, row.wall_ns))
        known = {rank: {step: values for step, *values in steps} for rank, steps in self._steps.items()}
        common = sorted(set.intersection(*(set(steps) for steps in known.values()))) if len(known) > 1 else []
        if len(common) < MIN_STEPS:
            return None
        own_ns, waits_ns, wall_ns = np.moveaxis(
            np.array([[steps[step] for step in common] for steps in known.values()], dtype=np.float64), 2, 0
        )
        at = int(own_ns.mean(axis=1).argmax())
        others = np.arange(len(known)) != at
        longer_ns = own_ns[at] - np.median(own_ns[others], axis=0)
        waited_ns = np.median(waits_ns[others].mean(axis=1)) - waits_ns[at].mean()
        is_sure = longer_ns.mean() >= STANDARD_ERRORS * longer_ns.std(ddof=1) / len(common) ** 0.5
        return list(known)[at] if is_sure and min(longer_ns.mean(), waited_ns) >= LATE * wall_ns.mean() else None


class AnomalyWindows:
    """Observer that requests a window for a new fault."""

    def __init__(self) -> None:
        self._num_drawn_steps = 0
        """Steps with detail that no request asked for."""
        self._has_light_steps = False
        self._late_rank = LateRank()

    def observe(self, window: Window) -> None:
        requests = read_requests(window.run, attempt=window.attempt)
        self._has_light_steps |= any(not row.terms for row in window.rows)
        detailed = {row.step for row in window.rows if row.terms}
        self._num_drawn_steps += sum(not _covered(step, requests) for step in detailed)
        late = self._late_rank.judge(window.rows)
        fault = self._chosen(window, requests)
        is_rare = fault is not None and CAUSES[fault.kind] in ONCE
        if late is not None and not is_rare and self._allows(window, requests) and _is_due(Cause.LATE_RANK, requests):
            _request(window, Cause.LATE_RANK, num_steps=LATE_STEPS, stacks=_with_peer((late,), window))
        elif fault is not None:
            _request(window, CAUSES[fault.kind], at_step=fault.step, stacks=_sampled_ranks(fault, window))

    def close(self) -> None:
        """Do nothing: requests stay."""

    def _chosen(self, window: Window, requests: Sequence[WindowRequest]) -> Fault | None:
        """The fault that opens a window, rare causes first; None if there is none or the bounds forbid it."""
        automatic = _automatic(requests)
        if not self._allows(window, requests):
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

    def _allows(self, window: Window, requests: Sequence[WindowRequest]) -> bool:
        allowed = FREE_WINDOWS + self._num_drawn_steps // (DRAWN_PER_WINDOW * BLOCK_STEPS)
        return not window.last and len(_automatic(requests)) < allowed


def _automatic(requests: Sequence[WindowRequest]) -> list[WindowRequest]:
    return [request for request in requests if request.cause not in PERSONS]


def _request(
    window: Window, cause: Cause, *, num_steps: int = NUM_STEPS, at_step: int | None = None, stacks: tuple[int, ...]
) -> None:
    try:
        request = request_window(window.run, num_steps=num_steps, cause=cause, at_step=at_step, stacks=stacks)
    except TraincopeError as error:
        logger.warning("no window was opened for %s: %s", PHRASES[cause], error)
    else:
        logger.info("steps %d to %d: %s", request.first_step + 1, request.last_step, request.reason)


def _sampled_ranks(fault: Fault, window: Window) -> tuple[int, ...]:
    """The rank that was slow and one that was not: both sample their stacks. Empty if no rank was named."""
    return _with_peer(fault.ranks, window) if CAUSES[fault.kind] in SAMPLED and len(fault.ranks) == 1 else ()


def _with_peer(ranks: tuple[int, ...], window: Window) -> tuple[int, ...]:
    """The rank and another one to compare with, of its pipeline stage if one runs here; empty without another."""
    stages = {status.rank: status.info.coord.coords.get(PIPELINE_AXIS) for status in window.ranks if not status.over}
    stage = next((stages[rank] for rank in ranks if rank in stages), None)
    peers = sorted(stages.keys() - set(ranks), key=lambda rank: (stages[rank] != stage, rank))
    return (*ranks, *peers[:1]) if peers else ()


def _is_due(cause: Cause, automatic: Sequence[WindowRequest]) -> bool:
    same = [request for request in automatic if request.cause is cause]
    if cause in ONCE:
        return not same
    return not same or time.time_ns() - max(request.at_wall_ns for request in same) >= REST_NS


def _covered(step: int, requests: Sequence[WindowRequest]) -> bool:
    """Return whether a request asked for the step. A traced step is longer: it must not open the next window."""
    return any(request.covers(step) or request.delays(step) for request in requests)
