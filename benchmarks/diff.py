"""Error rates of `traincope diff` on simulated runs: `python -m benchmarks.diff`. `--write` puts them into
docs/understand/diff.md.

Pairs of equal runs, whose step times differ only by noise, must not be called different more often than the level
allows, for each kind of noise and each length. The command fails if the upper bound of a rate is above the level. A
cell has this rate, the share of pairs that are tested, and the power: the smallest change that is found in 90 % of the
tested pairs. The last table has noise that a run cannot show, because it lasts longer than the run. It is not judged.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.judging import CONFIDENCE, Judged, exit_code, judge, share_interval
from evaluation.written import write_table
from traincope.analysis.diff.significance import LEVEL, adjusted, compare
from traincope.arrays import Floats

PAGE = Path(__file__).resolve().parents[1] / "docs" / "understand" / "diff.md"
PAIRS = 4_000
POWER_PAIRS = 300
POWER = 0.9
MIN_TESTED = 50
"""Fewer pairs do not give a power."""
CHANGES = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0)
"""Tried changes, in standard deviations of a step."""
LENGTHS = ((10, 10), (20, 20), (50, 50), (100, 100), (300, 300), (50, 300), (100, 1_000))
"""Steps of both runs."""
TERMS = 5
"""Number of terms that are tested at once."""

Random = np.random.Generator
Noise = Callable[[Random, int, int], Floats]
"""Step times of so many runs of so many steps, (runs, steps)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of noise."""

    name: str
    noise: Noise
    terms: int = 0
    """Number of independent terms, of which none may be called changed; 0: the step alone."""


def independent(random: Random, runs: int, steps: int) -> Floats:
    return random.normal(size=(runs, steps))


def following(correlation: float) -> Noise:
    """Each step depends on the one before: AR(1)."""

    def noise(random: Random, runs: int, steps: int) -> Floats:
        values = random.normal(size=(runs, steps))
        values[:, 1:] *= (1 - correlation**2) ** 0.5
        for at in range(1, steps):
            values[:, at] += correlation * values[:, at - 1]
        return values

    return noise


def periodic(period: int) -> Noise:
    """Each so many steps one is slow, as with evaluation or a garbage collection."""

    def noise(random: Random, runs: int, steps: int) -> Floats:
        slow = (np.arange(steps) + random.integers(period, size=(runs, 1))) % period == 0
        values: Floats = random.normal(size=(runs, steps)) / 10 + slow * period**0.5
        return values

    return noise


def wandering(random: Random, runs: int, steps: int) -> Floats:
    """A random walk."""
    values: Floats = random.normal(size=(runs, steps)).cumsum(axis=1)
    return values


def warming(random: Random, runs: int, steps: int) -> Floats:
    """Steps that become faster until the end."""
    values: Floats = random.normal(size=(runs, steps)) + np.linspace(3, 0, steps)
    return values


def heavy(random: Random, runs: int, steps: int) -> Floats:
    """A Pareto distribution without a variance."""
    return random.pareto(1.5, size=(runs, steps))


def bursts(begin: float, end: float, height: float) -> Noise:
    """Slow stretches. `begin` and `end` are the chances per step that one begins and ends."""

    def noise(random: Random, runs: int, steps: int) -> Floats:
        chances, slow = random.random((runs, steps)), np.empty((runs, steps), dtype=bool)
        slow[:, 0] = chances[:, 0] < begin / (begin + end)
        for at in range(1, steps):
            slow[:, at] = np.where(slow[:, at - 1], chances[:, at] > end, chances[:, at] < begin)
        values: Floats = random.normal(size=(runs, steps)) / 5 + height * slow
        return values

    return noise


def hidden(size: float) -> Noise:
    """A random walk within independent noise."""

    def noise(random: Random, runs: int, steps: int) -> Floats:
        return independent(random, runs, steps) + size * wandering(random, runs, steps)

    return noise


KINDS = (
    Kind(name="independent", noise=independent),
    Kind(name="correlation of neighbours 0.3", noise=following(0.3)),
    Kind(name="correlation 0.6", noise=following(0.6)),
    Kind(name="correlation 0.9", noise=following(0.9)),
    Kind(name="correlation 0.95", noise=following(0.95)),
    Kind(name="one slow step in 10", noise=periodic(10)),
    Kind(name="one slow step in 50", noise=periodic(50)),
    Kind(name="random walk", noise=wandering),
    Kind(name="steps that become faster", noise=warming),
    Kind(name="heavy tails", noise=heavy),
    Kind(name="slow for 10 steps at a time", noise=bursts(0.01, 0.1, 3.0)),
    Kind(name=f"any of {TERMS} terms, correlation 0.6", noise=following(0.6), terms=TERMS),
)
BEYOND = (
    Kind(name="slow for 50 steps at a time", noise=bursts(0.004, 0.02, 2.0)),
    Kind(name="random walk, hidden in ten times its noise", noise=hidden(0.1)),
    Kind(name="random walk, hidden in 33 times its noise", noise=hidden(0.03)),
)
"""Noise that lasts longer than a run, so that a run does not show it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Results for one kind of noise and two lengths."""

    tested: int
    different: int
    """Pairs of equal runs that were called different."""
    found: float | None
    """Smallest change that is found; None: none of those that were tried."""

    @property
    def judged(self) -> Judged:
        return judge(*share_interval(self.different, PAIRS), budget=LEVEL)


def rate(kind: Kind, lengths: tuple[int, int]) -> Rate:
    """Compare PAIRS pairs of runs with these numbers of steps."""
    random = np.random.default_rng([*kind.name.encode(), *lengths])
    terms = [tuple(kind.noise(random, PAIRS, steps) for steps in lengths) for _ in range(kind.terms or 1)]
    p = [[compare(before[at], after[at]).p for before, after in terms] for at in range(PAIRS)]
    p = [adjusted(each) for each in p] if kind.terms else p
    return Rate(
        tested=sum(any(each is not None for each in of_pair) for of_pair in p),
        different=sum(any(each is not None and each <= LEVEL for each in of_pair) for of_pair in p),
        found=None if kind.terms else _smallest(*(runs[:POWER_PAIRS] for runs in terms[0])),
    )


def _smallest(before: Floats, after: Floats) -> float | None:
    """The smallest of CHANGES that is found in the share POWER of the pairs that are tested."""
    for change in CHANGES:
        p = [compare(first, second + change).p for first, second in zip(before, after, strict=True)]
        tested = [each for each in p if each is not None]
        if len(tested) < MIN_TESTED:
            return None
        if sum(each <= LEVEL for each in tested) >= POWER * len(tested):
            return change
    return None


def lines(kinds: Sequence[Kind], results: Sequence[Sequence[Rate]], *, judged: bool) -> Iterator[str]:
    """The rates of kinds of noise as a table in Markdown."""
    heads = " | ".join(f"{first:,}" if first == second else f"{first:,} and {second:,}" for first, second in LENGTHS)
    yield f"| noise | {heads} |"
    yield "|---" * (1 + len(LENGTHS)) + "|"
    for kind, rates in zip(kinds, results, strict=True):
        yield f"| {kind.name} | {' | '.join(_cell(each, judged=judged) for each in rates)} |"


def _cell(rate: Rate, *, judged: bool) -> str:
    """Share of the pairs that were called different, of those that were tested, and the smallest change."""
    if not rate.tested:
        return "not tested"
    found = "" if rate.found is None else f"; {rate.found:g}"
    marked = f" {rate.judged.value}" if judged and rate.judged is not Judged.PASSED else ""
    return f"{rate.different / PAIRS:.2%}{marked}; {rate.tested / PAIRS:.0%}{found}"


def page(results: Sequence[Sequence[Rate]], beyond: Sequence[Sequence[Rate]]) -> Iterator[str]:
    """Both tables, and what was held."""
    highest = max(share_interval(each.different, PAIRS)[1] for rates in results for each in rates)
    judged = [each.judged for rates in results for each in rates]
    missed = sum(each is not Judged.PASSED for each in judged)
    yield from lines(KINDS, results, judged=True)
    yield ""
    yield (
        f"{PAIRS:,} pairs for each cell. Upper bound of a rate, at {CONFIDENCE:.0%} confidence: at most {highest:.2%}, "
        f"{LEVEL:.0%} allowed; {missed} of {len(judged)} missed or not shown."
    )
    yield ""
    yield "Noise that lasts longer than a run, which a run cannot show; not judged:"
    yield ""
    yield from lines(BEYOND, beyond, judged=False)


def _rates(kind: Kind) -> list[Rate]:
    print(kind.name, file=sys.stderr, flush=True)
    return [rate(kind, lengths) for lengths in LENGTHS]


def main(arguments: Sequence[str]) -> int:
    results, beyond = ([_rates(kind) for kind in kinds] for kinds in (KINDS, BEYOND))
    text = list(page(results, beyond))
    print("\n".join(text))
    if "--write" in arguments:
        write_table(PAGE, "diff", text, by="make bench-diff")
    return exit_code(each.judged for rates in results for each in rates)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
