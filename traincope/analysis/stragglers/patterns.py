"""Pattern of a rank's lateness over the steps: steady, since a step, growing, every k steps, or in some of them."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from traincope.arrays import Bools, Floats, Ints

MOST = 0.8
"""Share of the lateness that few steps must have, and of the distances between them that must be equal."""
FEW = 1 / 3
"""Largest share of the steps that are few."""
MIN_HITS = 4
"""Fewest late steps that show a period."""
GROWN = 0.5
"""Growth from the first late step to the last, relative to the mean lateness, from which lateness grows."""
STANDARD_ERRORS = 4.0
"""Standard errors of a growth by which it exceeds 0, so that noise is not called growth."""


class Shape(StrEnum):
    """Shape of a lateness over the steps; the value is its name in JSON."""

    STEADY = "steady"
    GROWING = "growing"
    PERIODIC = "periodic"
    IRREGULAR = "irregular"
    """Few steps have most of it, in no order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """Pattern of a lateness over the steps."""

    shape: Shape
    """`irregular`: few steps, in no order."""
    first_step: int | None
    """First late step; None: the rank is late from the beginning."""
    last_step: int | None
    """Last late step; None: the rank is late up to the end."""
    period_steps: int | None
    """Steps from one late step to the next; None unless periodic."""
    growth_ns_per_100_steps: float | None
    """None unless it grows."""
    late_steps: int
    """Number of late steps."""


def pattern(steps: Ints, excess_ns: Floats, *, stretch: tuple[int, int], blurred: int) -> tuple[Pattern, Bools]:
    """Describe the excess of a rank in `steps`, and mark the late steps.

    `stretch`: positions in which the test finds it late, with an error of `blurred` steps at both ends.
    """
    first, end = _bounds(excess_ns, stretch)
    late = np.zeros(len(steps), dtype=bool)
    late[first:end] = True
    hits = late & _largest(excess_ns, late)
    shape, every, growth = Shape.STEADY, None, None
    if hits.sum() <= FEW * (end - first):
        late, every = hits, period(steps[hits])
        shape = Shape.IRREGULAR if every is None else Shape.PERIODIC
    else:
        growth = _growth(steps[late], excess_ns[late])
        shape = Shape.STEADY if growth is None else Shape.GROWING
    found = Pattern(
        shape=shape,
        first_step=int(steps[first]) if first > blurred else None,
        last_step=int(steps[end - 1]) if end < len(steps) - blurred else None,
        period_steps=every,
        growth_ns_per_100_steps=None if growth is None else 100 * growth,
        late_steps=int(late.sum()),
    )
    return found, late


def _bounds(excess_ns: Floats, stretch: tuple[int, int]) -> tuple[int, int]:
    """Return the first late position, and the one after the last.

    Between two levels, the sum of the deviations from their middle is smallest at the first change and largest at the
    second (Page's cumulative sums, 1954).
    """
    first, end = stretch
    sums = np.concatenate([[0.0], np.cumsum(excess_ns - excess_ns[first:end].mean() / 2)])
    middle = (first + end) // 2
    return int(np.argmin(sums[: middle + 1])), middle + int(np.argmax(sums[middle:]))


def _largest(excess_ns: Floats, chosen: Bools) -> Bools:
    """Mark the fewest of the chosen steps that have MOST of their excess."""
    positive = np.where(chosen, np.maximum(excess_ns, 0.0), 0.0)
    order = np.argsort(-positive, kind="stable")
    count = int(np.searchsorted(np.cumsum(positive[order]), MOST * positive.sum())) + 1
    marked = np.zeros(len(excess_ns), dtype=bool)
    marked[order[:count]] = True
    return marked


def period(hits: Ints) -> int | None:
    """Return the usual distance of these steps; None if they are few, follow each other, or lie irregularly."""
    distances = np.diff(hits)
    if len(hits) < MIN_HITS:
        return None
    usual = int(np.median(distances))
    return usual if usual > 1 and (distances % usual == 0).mean() >= MOST else None


def _growth(steps: Ints, excess_ns: Floats) -> float | None:
    """Return the growth per step by a straight line; None if it is small, or may be noise.

    The standard error of the slope is that of ordinary least squares.
    """
    after, span = steps - steps[0], int(steps[-1] - steps[0])
    if len(steps) < MIN_HITS or excess_ns.std() == 0:
        return None
    slope, start = np.polyfit(after, excess_ns, 1)
    around_ns = excess_ns - start - slope * after
    error = float(np.sqrt((around_ns**2).sum() / (len(steps) - 2) / ((after - after.mean()) ** 2).sum()))
    return float(slope) if slope * span >= GROWN * excess_ns.mean() and slope >= STANDARD_ERRORS * error else None
