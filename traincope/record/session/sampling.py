"""Sampling: which steps are recorded in detail, so that the recorder's own time stays within its budget.

Steps form blocks of `BLOCK_STEPS` (`events.py`); a window is a block that is recorded in detail. After n halvings one
block of 2^n is a window. Each halving draws one half of a stratum by the run's id, so the windows after one more
halving are among those before it. Ranks that need different numbers of halvings share the windows of the largest, and
nothing is agreed on. The draw is random, because fixed distances would align with checkpoints, evaluations and logging.

The first blocks are all windows: who has just begun a run, or runs a short one, needs an answer from few steps. They
take the budget of ten minutes in advance at most, and a fifth of a step.

The native recorder's detail costs so little that every block is a window, unless the training has very many collectives
per second. The other hooks take about as much time in light steps, so with it only the cost of detail decides.
"""

import math
from collections import deque
from hashlib import blake2b
from statistics import median

from traincope.events import FIRST_BLOCKS
from traincope.record.session.steps import StepCost

MAX_HALVINGS = 10
"""At least one window in 7,168 steps."""
JUDGED_STEPS = 32
"""Number of latest steps, with and without detail, whose medians decide: one-off costs never do."""
MIN_JUDGED_STEPS = 5
ADVANCE_NS = 600_000_000_000
"""Time of training whose budget the first blocks may take."""
FIRST_SHARE = 0.2
"""Share of a step up to which its own time lets the first blocks be windows."""
DEFAULT_BUDGET = 0.005
NATIVE_BUDGETS = 4
"""Number of budgets that the native recorder's detail may take. By default, those are 20,000 collectives per second."""
TRIAL_INTERVAL = 32
"""Blocks from one that may be a trial to the next."""
MIN_DETAIL_SHARE = 0.2
"""Share of the budget that detail has in any case, however much of it light steps take."""


def is_window(block: int, *, halvings: int, seed: str) -> bool:
    """Return whether a block is a window after so many halvings."""
    return all((block >> (n - 1)) & 1 == _drawn_half(block >> n, n, seed) for n in range(1, halvings + 1))


def _drawn_half(stratum: int, halving: int, seed: str) -> int:
    return blake2b(f"{seed} {halving} {stratum}".encode(), digest_size=1).digest()[0] & 1


def needed_halvings(detailed_ns: float, light_ns: float, wall_ns: float, *, budget: float) -> int:
    """Return the number of halvings that keeps the mean own time of a step within `budget` x `wall_ns`.

    `detailed_ns` and `light_ns`: own time of a step with and without detail. Where light steps alone take more than the
    budget, detail still has `MIN_DETAIL_SHARE` of it: without any, the records would answer nothing.
    """
    budget_ns, detail_ns = budget * wall_ns, detailed_ns - light_ns
    spare_ns = max(budget_ns - light_ns, MIN_DETAIL_SHARE * budget_ns)
    if detail_ns <= spare_ns:
        return 0
    if spare_ns <= 0:
        return MAX_HALVINGS
    return min(math.ceil(math.log2(detail_ns / spare_ns)), MAX_HALVINGS)


class Sampling:
    """Decides from the measured cost of the latest steps. `budget` None: every step is recorded in detail."""

    def __init__(self, budget: float | None) -> None:
        self.budget = budget
        self.halvings = 0
        self._native = False
        self._own_ns = 0
        self._detailed_ns: deque[int] = deque(maxlen=JUDGED_STEPS)
        self._light_ns: deque[int] = deque(maxlen=JUDGED_STEPS)
        self._native_ns: deque[int] = deque(maxlen=JUDGED_STEPS)
        self._wall_ns: deque[int] = deque(maxlen=JUDGED_STEPS)

    def add(self, cost: StepCost, *, detailed: bool, native: bool) -> None:
        """Add a completed step. `native`: native code records its collectives."""
        self._native = native
        self._own_ns += cost.own_ns
        self._wall_ns.append(cost.wall_ns)
        if detailed:
            self._detailed_ns.append(cost.own_ns)
            self._native_ns.append(cost.native_ns)
        else:
            self._light_ns.append(cost.own_ns)

    def is_window(self, block: int, *, seed: str) -> bool:
        """Judge the cost and return whether the block that begins is a window."""
        if self.budget is not None and len(self._detailed_ns) >= MIN_JUDGED_STEPS:
            self.halvings = self._native_halvings(self.budget) if self._native else self._halvings(self.budget)
        if self._is_trial(block):
            return False
        return self._is_first(block) or is_window(block, halvings=self.halvings, seed=seed)

    def _halvings(self, budget: float) -> int:
        light_ns = median(self._light_ns) if self._light_ns else 0
        return needed_halvings(median(self._detailed_ns), light_ns, median(self._wall_ns), budget=budget)

    def _native_halvings(self, budget: float) -> int:
        """Judge detail alone: its time in native code, and what it takes beyond light steps, once these are known."""
        more_ns = median(self._detailed_ns) - median(self._light_ns) if self._light_ns else 0
        detail_ns = max(more_ns, median(self._native_ns))
        return needed_halvings(detail_ns, 0, median(self._wall_ns), budget=NATIVE_BUDGETS * budget)

    def _is_trial(self, block: int) -> bool:
        """Return whether a block shows what light steps cost, because the native recorder might cost too much."""
        if self.budget is None or not self._native or self._light_ns or not self._detailed_ns:
            return False
        if block % TRIAL_INTERVAL == FIRST_BLOCKS:
            return self._own_share > NATIVE_BUDGETS * self.budget
        return self._own_share >= FIRST_SHARE

    def _is_first(self, block: int) -> bool:
        is_affordable = self._own_share < FIRST_SHARE and self._own_ns < ADVANCE_NS * (self.budget or 0)
        return block < FIRST_BLOCKS and is_affordable

    @property
    def _own_share(self) -> float:
        return median(self._detailed_ns) / median(self._wall_ns) if self._detailed_ns else 0.0
