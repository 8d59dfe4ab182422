"""Forms of numbers on pages, where each number also carries its exact value; and the clocks' bound in words."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from traincope.timeline import RankClock
from traincope.units import (
    count,
    duration,
    flops,
    gigabytes_per_second,
    milliseconds,
    money,
    rank_hours,
    share,
    size,
)

Form = Literal[
    "share",
    "milliseconds",
    "duration",
    "seconds",
    "size",
    "count",
    "mean",
    "ratio",
    "gigabytes",
    "hours",
    "money",
    "growth",
    "per_100_steps",
    "ppm",
    "flops",
    "probability",
    "more_share",
    "more_duration",
]


def _more(written: Callable[[float], str]) -> Callable[[float], str]:
    """Write a difference, with its sign."""
    return lambda value: f"{'+' if value > 0 else ''}{written(value)}"


def _growth(num_bytes: float) -> str:
    return f"-{size(-num_bytes)}" if num_bytes < 0 else size(num_bytes)


FORMS: Mapping[Form, Callable[[float], str]] = {
    "share": share,
    "milliseconds": milliseconds,
    "duration": duration,
    "seconds": lambda value: duration(value * 1e9),
    "size": size,
    "count": lambda value: count(round(value)),
    "mean": lambda value: f"{value:,.1f}",
    "ratio": lambda value: f"{value:.2f}",
    "gigabytes": gigabytes_per_second,
    "hours": rank_hours,
    "money": money,
    "growth": _growth,
    "per_100_steps": lambda value: _growth(100 * value),
    "ppm": lambda value: f"{value:.2f}",
    "flops": flops,
    "probability": lambda value: f"{value:.3f}",
    "more_share": _more(share),
    "more_duration": _more(duration),
}


def across_hosts(clocks: Sequence[RankClock]) -> str:
    """The clocks' error in words, e.g. " across hosts within 80.0 us"; empty if all ranks share one clock.

    It is also empty if a bound is unknown, because then nothing is compared across hosts.
    """
    bounds = {clock.bound_ns for clock in clocks}
    known = [bound for bound in bounds if bound is not None]
    if len(known) < len(bounds) or not any(known):
        return ""
    return f" across hosts within {duration(max(known))}"
