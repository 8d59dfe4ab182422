"""Terms that become longer from step to step."""

import numpy as np
import pytest

from tests.analysis.verdict.test_verdict import verdict
from tests.timeline.build import Row, phase, rank, step
from traincope.analysis import Finding
from traincope.analysis.ledger.growing import MIN_STEPS, RISES, Growing, growing
from traincope.events import Phase

MS = 1_000_000
RNG = np.random.default_rng(5)


def test_a_steady_growth_has_the_means_of_its_ends() -> None:
    ns = np.arange(100) * MS + 50 * MS
    grows = growing(ns)
    assert grows == Growing(first_ns=round(54.5 * MS), last_ns=round(144.5 * MS), mean_ns=round(99.5 * MS))
    assert grows.first_ratio == pytest.approx(54.5 / 99.5)
    assert growing(ns + RNG.integers(-20 * MS, 20 * MS, 100)) is not None


@pytest.mark.parametrize(
    "ns",
    [
        np.arange(MIN_STEPS - 1) * MS,
        np.full(200, 50 * MS),
        np.where(np.arange(200) < 100, 10 * MS, 60 * MS),
        np.arange(200)[::-1] * MS,
        np.arange(200) * MS + 200 * MS,
    ],
    ids=["few steps", "constant", "one change", "shorter", "less than twice"],
)
def test_what_is_no_steady_growth(ns: np.ndarray) -> None:
    assert growing(ns) is None


def test_noise_rarely_grows() -> None:
    """One order of ten parts in 3,579 rises as often, and then it must also double."""
    found = [growing(RNG.exponential(10 * MS, 200).astype(np.int64)) for _ in range(1000)]
    assert sum(each is not None for each in found) <= 2
    assert RISES == 8


def findings(*, forward_grows: bool = False) -> list[Finding]:
    """Step n works 10 ms in a forward, or n x 0.5 ms more, and then n x 0.5 ms in nothing that is known."""
    rows: list[Row] = []
    at = 0
    for number in range(100):
        grown = number * MS // 2
        forward = 10 * MS + (grown if forward_grows else 0)
        rows += [step(number, at, at + forward + grown), phase(Phase.FORWARD, at, at + forward, at=number)]
        at += forward + grown
    return [each for each in verdict(rank(0, *rows)) if each.kind == "unattributed"]


def test_growing_unattributed_time_has_its_own_advice_and_gain() -> None:
    """Steps 1 to 99 count, 10 + n / 2 ms each. The first tenth of them, steps 1 to 10, has 2.75 ms: 22.25 of 35 ms are
    saved if all have as much.
    """
    (found,) = findings()
    assert "it grows with the steps: 2.75 ms in the first tenth of them, 47.5 ms in the last" in found.evidence
    assert found.advice.startswith("Look for what becomes larger with every step: a metric")
    assert found.estimated_gain_ratio == pytest.approx(22.25 / 35)
    assert found.gain_at_most
    assert "saves at most 63.6 % of step time" in found.advice


def test_where_the_forward_grows_too_the_batches_do() -> None:
    (found,) = findings(forward_grows=True)
    assert "grows" not in found.evidence
    assert found.estimated_gain_ratio is None
