"""Look for a rank of this node that the others seem to wait for, so that a window shows where its Python stands.

The test is coarse, because it opens a window and accuses no rank: the report judges by all steps and by the samples.
"""

from collections import defaultdict, deque
from collections.abc import Iterable

import numpy as np

from traincope.analysis.attribution.terms import COMPUTE
from traincope.analysis.stragglers.own_work import OWN_WORK
from traincope.store.side_tables.rows import Row

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
    """Own work and waits of each rank in the latest steps with detail."""

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
