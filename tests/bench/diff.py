"""Error rates of `traincope diff` on equal runs: `python -m tests.bench.diff`.

Pairs of simulated runs whose step times differ only by noise: independent steps, or each step correlated with the one
before. At level 0.01 about 1 % of the pairs may be judged different. With few correlated steps the rate is higher,
because the correlation cannot be estimated from so few. The last column is the rate at which a change of three standard
deviations is found.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from traincope.analysis.diff.diff import LEVEL
from traincope.analysis.diff.significance import MIN_BLOCKS, block_length, blocks, compare
from traincope.arrays import Floats

TRIALS = 300
SETTLED = 100
"""Discarded steps, so that the first counted step is like the others."""
CASES = ((7, 0.0), (20, 0.0), (60, 0.0), (10, 0.5), (30, 0.5), (60, 0.5), (100, 0.5), (300, 0.9))
"""Steps per run, and the correlation of consecutive steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Shares of the trials."""

    judged: float
    """Trials with enough steps."""
    alike: float
    """Equal runs that were judged different."""
    share: float
    """Changes of three standard deviations that were found."""


def steps(random: np.random.Generator, count: int, correlation: float) -> Floats:
    """Step times with standard deviation 1."""
    noise, values = random.normal(size=count + SETTLED) * (1 - correlation**2) ** 0.5, [0.0]
    for trial in noise.tolist():
        values.append(correlation * values[-1] + trial)
    return np.array(values[-count:])


def rates(count: int, correlation: float) -> Rates:
    random = np.random.default_rng(count)
    tried = [tuple(_trial(random, count, correlation)) for _ in range(TRIALS)]
    judged = [trial for trial in tried if trial]
    return Rates(
        judged=len(judged) / TRIALS,
        alike=sum(alike for alike, _ in judged) / TRIALS,
        share=sum(share for _, share in judged) / TRIALS,
    )


def _trial(random: np.random.Generator, count: int, correlation: float) -> Iterator[bool]:
    """Judgements of equal runs and of a slower run; empty if there are too few steps."""
    runs = [steps(random, count, correlation) for _ in range(2)]
    length = block_length(runs)
    before, after, slower = (blocks(values[:, None], length) for values in (*runs, runs[1] + 3))
    if min(len(before), len(after)) >= MIN_BLOCKS:
        yield bool(compare(before, after).p[0] <= LEVEL)
        yield bool(compare(before, slower).p[0] <= LEVEL)


def main() -> None:
    table = Table(title=f"traincope diff at level {LEVEL:g}, {TRIALS} pairs of runs each", box=None)
    for head in ("steps", "correlation", "judged", "alike, told apart", "3 spreads, found"):
        table.add_column(head, justify="right")
    for count, correlation in CASES:
        result = rates(count, correlation)
        table.add_row(
            str(count), f"{correlation:g}", f"{result.judged:.0%}", f"{result.alike:.1%}", f"{result.share:.1%}"
        )
    Console().print(table)


if __name__ == "__main__":
    main()
