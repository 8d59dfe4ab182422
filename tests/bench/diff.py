"""How often `traincope diff` tells alike runs apart: `python -m tests.bench.diff`.

Pairs of runs of made step times that differ by noise alone: independent from step to step, or each depending on the one
before (correlation). At a level of 0.01 one of a hundred may be told apart; where steps depend on each other and are
few, it is more, for nobody can see in so few that they do. Beside it how often a change of three spreads is found.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from traincope.analysis.diff import LEVEL
from traincope.analysis.diff_significance import FEWEST_BLOCKS, block_length, blocks, compare

Floats = NDArray[np.float64]
TRIALS = 300
SETTLED = 100
"""Steps that are thrown away, so that the first one is like the others."""
CASES = ((7, 0.0), (20, 0.0), (60, 0.0), (10, 0.5), (30, 0.5), (60, 0.5), (100, 0.5), (300, 0.9))
"""Steps of a run, and their correlation from one to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Shares of the trials."""

    judged: float
    """There were enough steps."""
    alike: float
    """Alike runs, told apart."""
    found: float
    """A change of three spreads, told."""


def steps(random: np.random.Generator, count: int, correlation: float) -> Floats:
    """Of spread 1."""
    noise, values = random.normal(size=count + SETTLED) * (1 - correlation**2) ** 0.5, [0.0]
    for one in noise.tolist():
        values.append(correlation * values[-1] + one)
    return np.array(values[-count:])


def rates(count: int, correlation: float) -> Rates:
    random = np.random.default_rng(count)
    tried = [tuple(_trial(random, count, correlation)) for _ in range(TRIALS)]
    judged = [one for one in tried if one]
    return Rates(
        judged=len(judged) / TRIALS,
        alike=sum(alike for alike, _ in judged) / TRIALS,
        found=sum(found for _, found in judged) / TRIALS,
    )


def _trial(random: np.random.Generator, count: int, correlation: float) -> Iterator[bool]:
    """Whether alike runs are told apart, and whether slower ones are; nothing of too few steps."""
    runs = [steps(random, count, correlation) for _ in range(2)]
    length = block_length(runs)
    before, after = (blocks(values[:, None], length) for values in runs)
    if min(len(before), len(after)) >= FEWEST_BLOCKS:
        yield bool(compare(before, after).p[0] <= LEVEL)
        yield bool(compare(before, after + 3).p[0] <= LEVEL)


def main() -> None:
    table = Table(title=f"traincope diff at level {LEVEL:g}, {TRIALS} pairs of runs each", box=None)
    for head in ("steps", "correlation", "judged", "alike, told apart", "3 spreads, found"):
        table.add_column(head, justify="right")
    for count, correlation in CASES:
        told = rates(count, correlation)
        table.add_row(str(count), f"{correlation:g}", f"{told.judged:.0%}", f"{told.alike:.1%}", f"{told.found:.1%}")
    Console().print(table)


if __name__ == "__main__":
    main()
