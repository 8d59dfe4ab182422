"""Terms that become longer from step to step."""

import numpy as np
import pytest

from tests.analysis.verdict.test_verdict import verdict
from tests.timeline.build import Row, phase, rank, step
from traincope.analysis.ledger.growing import MIN_STEPS, RISES, Growing, growing
from traincope.events import Phase

MS = 1_000_000
RNG = np.random.default_rng(5)


def test_a_steady_growth_has_the_means_of_its_ends() -> None:
    ns = np.arange(100) * MS + 50 * MS
    assert growing(ns) == Growing(first_ns=round(54.5 * MS), last_ns=round(144.5 * MS))
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


def test_growing_unattributed_time_has_its_own_advice() -> None:
    """Step n works 10 ms in a forward and then n x 0.5 ms in nothing that is known."""
    rows: list[Row] = []
    at = 0
    for number in range(100):
        length = 10 * MS + number * MS // 2
        rows += [step(number, at, at + length), phase(Phase.FORWARD, at, at + 10 * MS, at=number)]
        at += length
    found = next(each for each in verdict(rank(0, *rows)) if each.kind == "unattributed")
    assert "it grows with the steps: 2.75 ms in the first tenth of them, 47.5 ms in the last" in found.evidence
    assert found.advice.startswith("Look for what becomes larger with every step: a metric")
