"""Checkpoint intervals, and that no other interval loses less. Published numbers stand in test_published.py."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincope.errors import UsageError
from traincope.plan.cadence import Failures, daly_seconds, job_mtbf, useful_ratio, young_seconds


def test_a_job_fails_as_often_as_all_its_parts_together() -> None:
    assert job_mtbf(part_mtbf_seconds=40_000, parts=16) == 2_500


def test_young_by_hand() -> None:
    """sqrt(2 x 50 x 10,000)."""
    assert young_seconds(Failures(mtbf_seconds=10_000, save_seconds=50)) == 1_000


times = st.floats(1, 1e5)


@given(mtbf=times, save=times, restart=st.floats(0, 1e4))
def test_dalys_interval_is_within_a_thousandth_of_the_best(mtbf: float, save: float, restart: float) -> None:
    """Saves cost less than half of the time between failures, the range for which Daly gives the series."""
    failures = Failures(mtbf_seconds=mtbf, save_seconds=min(save, mtbf / 2), restart_seconds=restart)
    best = daly_seconds(failures)
    ratio = useful_ratio(failures, best)
    assert all(useful_ratio(failures, best * 2 ** (step / 10)) <= ratio * 1.001 for step in range(-40, 41))


def test_the_useful_ratio_agrees_with_a_simulated_job() -> None:
    """Random failures over 300,000 seconds of work: the share that lasts agrees within 0.02."""
    failures = Failures(mtbf_seconds=500, save_seconds=10, restart_seconds=30)
    chance = random.Random(3)
    elapsed, done, interval = 0.0, 0.0, 100.0
    while done < 300_000:
        until = chance.expovariate(1 / failures.mtbf_seconds)
        if until >= interval + failures.save_seconds:
            elapsed, done = elapsed + interval + failures.save_seconds, done + interval
            continue
        elapsed += until
        while (until := chance.expovariate(1 / failures.mtbf_seconds)) < failures.restart_seconds:
            elapsed += until
        elapsed += failures.restart_seconds
    assert done / elapsed == pytest.approx(useful_ratio(failures, interval), abs=0.02)


def test_with_very_costly_saves_dalys_interval_is_the_mean_time_between_failures() -> None:
    assert daly_seconds(Failures(mtbf_seconds=100, save_seconds=200)) == 100


def test_a_job_that_never_reaches_a_checkpoint_keeps_nothing() -> None:
    assert useful_ratio(Failures(mtbf_seconds=1, save_seconds=1), 10_000) == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"mtbf_seconds": 0, "save_seconds": 1}, "mtbf_seconds is 0; it must be greater than 0"),
        ({"mtbf_seconds": 1, "save_seconds": float("nan")}, "save_seconds is nan; it must be greater than 0"),
        ({"mtbf_seconds": float("inf"), "save_seconds": 1}, "mtbf_seconds is inf; it must be finite"),
        (
            {"mtbf_seconds": 1, "save_seconds": 1, "restart_seconds": float("inf")},
            "restart_seconds is inf; it must be finite",
        ),
        ({"mtbf_seconds": 1, "save_seconds": 1, "restart_seconds": -1}, "restart_seconds is -1; it must be at least 0"),
    ],
)
def test_impossible_failures_are_refused(arguments: dict[str, float], sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        Failures(**arguments)
    assert str(refused.value) == sentence
