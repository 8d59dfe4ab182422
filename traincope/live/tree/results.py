"""Results: transfers of collectives whose members are all known, on their way down to the agents that took part."""

import threading
from collections.abc import Callable
from time import monotonic_ns

import numpy as np
from numpy.typing import NDArray

from traincope.errors import ServerError
from traincope.live.tree.entries import Entries
from traincope.timeline.collectives.elsewhere import Elsewhere

RESULT = np.dtype([("identity", "<u8"), ("transfer_ns", "<i8"), ("error_ns", "<i8"), ("splits", "u1")])
Results = NDArray[np.void]
MAX_RESULTS = 8_192
"""Results of one message: 200 KiB."""
MAX_KNOWN = 1 << 16
"""Newest results that one agent keeps: 1.6 MiB."""
KEPT_NS = 180_000_000_000
"""The agent may rest for a minute between two looks, and a step may wait for results."""
NOTHING = np.empty(0, dtype=RESULT)


def results_of(entries: Entries) -> Results:
    """Transfers of complete sums, as in `timeline.collectives.instances`: the shortest part; if the end of some part
    is only bounded, at most the time from the latest start to the earliest end and the error of the clocks.

    The error is twice the largest error of a host's clock: at least that between any two of them.
    """
    results, seen_late = np.zeros(len(entries), dtype=RESULT), entries["seen_late"] > 0
    error_ns = 2 * entries["error_ns"]
    overlap_ns = entries["earliest_end_ns"] - entries["latest_start_ns"] + error_ns
    shared_ns = np.minimum(entries["shortest_ns"], np.maximum(overlap_ns, 0))
    results["identity"] = entries["identity"]
    results["transfer_ns"] = np.where(seen_late, shared_ns, entries["shortest_ns"])
    results["error_ns"] = np.where(seen_late, error_ns, 0)
    results["splits"] = ~seen_late | (entries["comparable"] > 0)
    return results


def read_results(payload: bytes) -> Results:
    """Raises ServerError for bytes that are no results, or too many."""
    if len(payload) % RESULT.itemsize or len(payload) > MAX_RESULTS * RESULT.itemsize:
        raise ServerError("transfers of collectives have another size than results")
    results: Results = np.frombuffer(payload, dtype=RESULT)
    if (results["transfer_ns"] < 0).any() or (results["error_ns"] < 0).any():
        raise ServerError("a collective has a negative transfer")
    return results


class Known:
    """Latest results at one agent. Any thread may use it."""

    def __init__(self, *, now_ns: Callable[[], int] = monotonic_ns) -> None:
        self._lock, self._now_ns = threading.Lock(), now_ns
        self._results, self._arrived_ns = NOTHING, np.empty(0, dtype=np.int64)

    def add(self, results: Results) -> None:
        """Add results. Of two about one collective the first stays."""
        now_ns = self._now_ns()
        with self._lock:
            arrived_ns = np.concatenate([self._arrived_ns, np.full(len(results), now_ns)])
            joined = np.concatenate([self._results, results])
            kept = np.flatnonzero(arrived_ns >= now_ns - KEPT_NS)[-MAX_KNOWN:]
            self._results, self._arrived_ns = joined[kept], arrived_ns[kept]

    def elsewhere(self) -> Elsewhere:
        with self._lock:
            results = self._results
        identity, first = np.unique(results["identity"], return_index=True)
        chosen = results[first]
        return Elsewhere(
            identity=identity,
            transfer_ns=chosen["transfer_ns"].astype(np.int64),
            error_ns=chosen["error_ns"].astype(np.int64),
            splits=chosen["splits"] > 0,
        )
