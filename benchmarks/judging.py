"""The judgement of a measurement against a budget. Its interval decides: noise can neither pass nor miss a budget."""

from argparse import ArgumentTypeError
from collections.abc import Iterable
from enum import StrEnum
from math import exp, lgamma, log, log1p

CONFIDENCE = 0.99
"""Of the interval of a share of trials."""
NOT_SHOWN_EXIT = 4
"""Exit code of a command whose results neither keep nor miss their limits, because of the machine's noise."""


class Judged(StrEnum):
    """Result of a comparison with a budget; the value is its word in tables."""

    PASSED = "passed"
    MISSED = "MISSED"
    NOT_SHOWN = "not shown"
    """The budget lies within the interval: more trials or a quieter machine are needed."""


def judge(low: float, high: float, *, budget: float) -> Judged:
    """Compare the interval of a cost with its budget."""
    if high <= budget:
        return Judged.PASSED
    return Judged.MISSED if low > budget else Judged.NOT_SHOWN


def at_least(low: float, high: float, *, budget: float) -> Judged:
    """Compare the interval of a speed with the smallest one that is allowed."""
    return judge(-high, -low, budget=-budget)


def exit_code(judged: Iterable[Judged]) -> int:
    """0 only if every budget is shown to be kept."""
    return int(any(each is not Judged.PASSED for each in judged))


def at_least_one(text: str) -> int:
    """Number of trials on a command line. Without any, a score would pass and show nothing."""
    number = int(text)
    if number < 1:
        raise ArgumentTypeError("give at least 1")
    return number


def share_interval(hits: int, trials: int) -> tuple[float, float]:
    """Exact interval of CONFIDENCE of a share (Clopper and Pearson, Biometrika 26, 1934)."""
    tail = (1 - CONFIDENCE) / 2
    low = 0.0 if hits == 0 else 1 - _upper(trials - hits, trials, tail)
    return low, 1.0 if hits == trials else _upper(hits, trials, tail)


def _upper(hits: int, trials: int, tail: float) -> float:
    """The share at which at most `hits` of the trials hit with probability `tail`."""
    low, high = hits / trials, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if _at_most(hits, trials, middle) > tail:
            low = middle
        else:
            high = middle
    return high


def _at_most(hits: int, trials: int, share: float) -> float:
    """Binomial probability of at most `hits`, by the smaller tail."""
    if hits > trials // 2:
        return 1 - sum(_exactly(number, trials, share) for number in range(hits + 1, trials + 1))
    return sum(_exactly(number, trials, share) for number in range(hits + 1))


def _exactly(hits: int, trials: int, share: float) -> float:
    if share in (0.0, 1.0):
        return float(hits == trials * share)
    ways = lgamma(trials + 1) - lgamma(hits + 1) - lgamma(trials - hits + 1)
    return exp(ways + hits * log(share) + (trials - hits) * log1p(-share))
