"""Disk budget of a whole job: each agent keeps the records of its ranks within its part, and evidence longest.

Whole segments are thinned first, then thinned ones without an anomaly or event are removed, then kernel traces without
an anomaly, each the oldest of all ranks first. The first and the last segments of a thread, events, steps around
anomalies, and rows stay. So a job whose evidence alone is larger exceeds its budget, and its agents report that.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from traincope.errors import RunDirectoryError
from traincope.events import Kind
from traincope.live.node.rank import RankTail
from traincope.live.node.retention import remove, thin
from traincope.store.layout import COMPACTED, SEGMENT, record_files, thread_and_index, trace_files, window_step
from traincope.store.segments.compacted import is_thinned, read_compacted
from traincope.units import size

logger = logging.getLogger(__name__)

VARIABLE = "TRAINCOPE_JOB_BUDGET"
"""Environment variable: bytes of records of all ranks of the job."""
KEPT_LAST = 2
"""Newest compacted segments of a thread that stay whole."""


class JobBudget:
    """This node's part of the budget."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._thinned: dict[Path, bool] = {}
        self._evidence: dict[Path, tuple[tuple[int, frozenset[int]], bool]] = {}
        """Segment -> its time and the steps of anomalies, and whether it must stay."""
        self._is_exceeded = False

    def apply(self, tails: Sequence[RankTail], *, world_size: int) -> None:
        """Keep the records of these ranks within their part. Raises OSError, MissingDependencyError."""
        allowed = self._budget_bytes * len(tails) // max(world_size, 1)
        odd = {tail.directory: frozenset(tail.odd_steps) for tail in tails}
        while (excess := num_bytes(odd) - allowed) > 0:
            if not self._reduce(odd):
                if not self._is_exceeded:
                    logger.warning("%s exceeds its budget by %s of evidence, which stays", VARIABLE, size(excess))
                self._is_exceeded = True
                return

    def _reduce(self, odd: Mapping[Path, frozenset[int]]) -> bool:
        """Take the next step. False if only evidence is left."""
        middle = sorted(_middle(odd), key=lambda path: (path.stat().st_mtime_ns, path))
        for path in middle:
            if not self._is_thinned(path):
                thin(path, odd_steps=odd[path.parent])
                self._thinned[path] = True
                return True
        for path in middle:
            if not self._is_evidence(path, _around(odd[path.parent])):
                remove(path, first=_first(path))
                del self._thinned[path], self._evidence[path]
                return True
        for trace in sorted(_usual_traces(odd), key=lambda path: (path.stat().st_mtime_ns, path)):
            trace.unlink()
            return True
        return False

    def _is_evidence(self, path: Path, steps: frozenset[int]) -> bool:
        """Return whether a segment has one of these steps, or events. Each state of a file is read once."""
        state = path.stat().st_mtime_ns, steps
        known = self._evidence.get(path)
        if known is None or known[0] != state:
            known = self._evidence[path] = state, _has_evidence(path, steps)
        return known[1]

    def _is_thinned(self, path: Path) -> bool:
        if path not in self._thinned:
            self._thinned[path] = is_thinned(path)
        return self._thinned[path]


def job_budget(environment: Mapping[str, str]) -> JobBudget | None:
    """Return the budget of the environment; None without one. A wrong one is reported and not used."""
    text = environment.get(VARIABLE, "")
    if not text:
        return None
    try:
        budget_bytes = int(float(text))
    except (ValueError, OverflowError):
        budget_bytes = 0
    if budget_bytes <= 0:
        logger.warning("%s must be bytes of all records of the job, e.g. 50e9, not %r: ignored", VARIABLE, text)
        return None
    return JobBudget(budget_bytes)


def num_bytes(ranks: Iterable[Path]) -> int:
    """Disk space of the records and traces of these ranks."""
    return sum(path.stat().st_size for rank in ranks for path in (*record_files(rank), *trace_files(rank)))


def _middle(ranks: Iterable[Path]) -> Iterator[Path]:
    """Compacted segments between the first and the last of each thread."""
    for rank in ranks:
        threads: dict[str, list[Path]] = {}
        for path in record_files(rank):
            threads.setdefault(thread_and_index(path)[0], []).append(path)
        for files in threads.values():
            if files[0].suffix != COMPACTED:
                continue  # what is removed is counted in the first
            open_files = sum(path.suffix == SEGMENT for path in files)
            kept_last = max(KEPT_LAST, open_files)
            yield from (path for path in files[1:-kept_last] if path.suffix == COMPACTED)


def _first(path: Path) -> Path:
    return record_files(path.parent, thread=thread_and_index(path)[0])[0]


def _around(odd: frozenset[int]) -> frozenset[int]:
    return frozenset(step + shift for step in odd for shift in (-1, 0, 1))


def _has_evidence(path: Path, steps: frozenset[int]) -> bool:
    try:
        records = read_compacted(path).records
    except RunDirectoryError:
        return True  # a damaged file is evidence too
    return bool(np.isin(records["step"], list(steps)).any() or (records["kind"] == Kind.EVENT).any())


def _usual_traces(odd: Mapping[Path, frozenset[int]]) -> Iterator[Path]:
    for rank, steps in odd.items():
        for path in trace_files(rank):
            step = window_step(path)
            if step is not None and step not in _around(steps):
                yield path
