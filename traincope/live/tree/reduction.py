"""Reduction at one agent: sums from its children and its own ranks, and the way back of their results.

Sums go up at once and are never sent twice: a message that may be lost costs the collectives in it, which stay unsplit.
Only the root waits for further members, for some seconds.
"""

import threading
from collections.abc import Callable
from time import monotonic_ns

import numpy as np
from numpy.typing import NDArray

from traincope.live.tree.entries import MAX_ENTRIES, NOTHING, Entries, merged
from traincope.live.tree.results import MAX_RESULTS, Results, results_of
from traincope.live.tree.results import NOTHING as NO_RESULTS

OWN = 0
"""Source of this host's own entries. Children are 1 to `MAX_CHILDREN`."""
MAX_CHILDREN = 24
AWAITED_NS = 30_000_000_000
"""Longest wait of the root for further members, and of each agent for a result."""
MAX_PENDING = 1 << 16
"""Newest collectives that one agent remembers: 5 MiB at the root, 1 MiB at the others."""
MAX_SHIFTED = 4_096


class Reduction:
    """State of one agent. Any thread may use it."""

    def __init__(self, *, on_results: Callable[[Results], None], now_ns: Callable[[], int] = monotonic_ns) -> None:
        """`on_results`: gets the results of collectives with own members."""
        self._lock = threading.Lock()
        self._on_results, self._now_ns = on_results, now_ns
        self._incoming: list[Entries] = []
        self._pending, self._pending_ns = NOTHING, np.empty(0, dtype=np.int64)
        self._routes = np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64)
        """Identities, sources as bits, and the last time of each."""
        self._down: dict[int, Results] = {}
        self._shifted = np.empty(0, dtype=np.uint64)
        self.num_dropped = 0
        """Entries and results beyond the bounds."""

    def add(self, entries: Entries, *, source: int) -> None:
        """Add the entries of own ranks, or of a child."""
        if not len(entries):
            return
        with self._lock:
            self._incoming.append(entries)
            self._note_route(entries["identity"], source)

    def take_up(self) -> Entries:
        """Return the sums for the parent. Collectives that are complete here get their result here."""
        with self._lock:
            sums = self._take()
            complete = _is_complete(sums)
            self._deliver(self._results(sums[complete]))
            rest = sums[~complete]
            self.num_dropped += max(len(rest) - MAX_ENTRIES, 0)
            return rest[:MAX_ENTRIES]

    def finish(self) -> None:
        """Add up at the root, which has no parent."""
        with self._lock:
            now_ns, new = self._now_ns(), self._take()
            known_ns = np.concatenate([self._pending_ns, np.full(len(new), now_ns)])
            both = np.concatenate([self._pending, new])
            sums = merged(both)
            first = np.unique(both["identity"], return_index=True)[1]
            order = np.argsort(sums["identity"], kind="stable")
            sums, since_ns = sums[order], known_ns[first]
            complete = _is_complete(sums)
            self._deliver(self._results(sums[complete]))
            kept = np.flatnonzero(~complete & (since_ns >= now_ns - AWAITED_NS))
            newest = kept[np.argsort(since_ns[kept], kind="stable")][-MAX_PENDING:]
            self.num_dropped += len(kept) - len(newest)
            self._pending, self._pending_ns = sums[newest], since_ns[newest]

    def deliver(self, results: Results) -> None:
        """Pass the parent's results on to the children and the own ranks that took part."""
        with self._lock:
            self._deliver(results)

    def take_down(self, source: int) -> Results:
        """Return the results for a child."""
        with self._lock:
            waiting = self._down.pop(source, NO_RESULTS)
            self._down[source] = waiting[MAX_RESULTS:]
            return waiting[:MAX_RESULTS]

    def forget(self, source: int) -> None:
        """Forget a child whose connection ended. Its place may get another one."""
        with self._lock:
            self._down.pop(source, None)
            identity, sources, at_ns = self._routes
            self._routes = identity, sources & ~_bit(source), at_ns

    def _take(self) -> Entries:
        sums = merged(np.concatenate([NOTHING, *self._incoming]))
        self._incoming = []
        return sums

    def _results(self, complete: Entries) -> Results:
        """Results of complete sums; none in a window in which members began to count at different collectives."""
        counted = complete["count_high"] > 0
        differ = complete[counted & (complete["count_low"] < complete["count_high"])]
        self._shifted = np.concatenate([self._shifted, differ["window"]])[-MAX_SHIFTED:]
        sound = (complete["flaw"] == 0) & ~np.isin(complete["window"], self._shifted)
        return results_of(complete[sound])

    def _deliver(self, results: Results) -> None:
        identity, sources, _ = self._routes
        if not len(results) or not len(identity):
            return
        at = np.minimum(np.searchsorted(identity, results["identity"]), len(identity) - 1)
        bits = np.where(identity[at] == results["identity"], sources[at], np.uint64(0))
        for source in range(MAX_CHILDREN + 1):
            chosen = results[bits & _bit(source) > 0]
            if len(chosen) and source == OWN:
                self._on_results(chosen)
            elif len(chosen):
                waiting = np.concatenate([self._down.get(source, NO_RESULTS), chosen])
                self.num_dropped += max(len(waiting) - MAX_PENDING, 0)
                self._down[source] = waiting[-MAX_PENDING:]

    def _note_route(self, new: NDArray[np.uint64], source: int) -> None:
        now_ns = self._now_ns()
        identity, sources, at_ns = self._routes
        identities = np.concatenate([identity, new])
        bits = np.concatenate([sources, np.full(len(new), _bit(source))])
        times = np.concatenate([at_ns, np.full(len(new), now_ns)])
        unique, at = np.unique(identities, return_inverse=True)
        joined, latest = np.zeros(len(unique), dtype=np.uint64), np.zeros(len(unique), dtype=np.int64)
        np.bitwise_or.at(joined, at, bits)
        np.maximum.at(latest, at, times)
        kept = np.sort(np.argsort(latest, kind="stable")[-MAX_PENDING:])
        kept = kept[latest[kept] >= now_ns - 2 * AWAITED_NS]
        self._routes = unique[kept], joined[kept], latest[kept]


def _bit(source: int) -> np.uint64:
    return np.uint64(1 << source)


def _is_complete(sums: Entries) -> NDArray[np.bool_]:
    complete: NDArray[np.bool_] = sums["members"] == sums["all_members"]
    return complete
