"""The interval that `cadence = "auto"` chooses."""

import math

import pytest

from traincope.engine.checkpoint.cadence import Cadence, Interval
from traincope.engine.config import CheckpointConfig
from traincope.errors import ConfigError

HOUR = 3600.0


def test_the_interval_is_dalys_for_the_measured_times() -> None:
    """A save of 40 s, steps of 105.2 s and a failure in 168 hours: sqrt(2 C M) = 6,956 s, and Daly's two terms more."""
    cadence = Cadence(mtbf_hours=168.0, ranks=8, interruptions=0)
    chosen = cadence.after_save(done=0, steps=10, training_seconds=1052.0, save_seconds=40.0)
    mtbf = 168 * HOUR
    daly = math.sqrt(2 * 40 * mtbf) * (1 + math.sqrt(40 / (2 * mtbf)) / 3 + 40 / (2 * mtbf) / 9) - 40
    assert daly == pytest.approx(6929, abs=1)
    assert chosen == Interval(steps=round(daly / 105.2), save_seconds=40.0, step_seconds=105.2, mtbf_seconds=mtbf)


def test_interruptions_and_the_time_without_any_move_the_expected_rate() -> None:
    def mtbf(*, interruptions: int, done: int) -> float:
        cadence = Cadence(mtbf_hours=10.0, ranks=1, interruptions=interruptions)
        return cadence.after_save(done=done, steps=1, training_seconds=1.0, save_seconds=1.0).mtbf_seconds

    assert mtbf(interruptions=0, done=36_000) == 20 * HOUR
    assert mtbf(interruptions=3, done=36_000) == 5 * HOUR


def test_16384_ranks_are_expected_to_fail_as_often_as_llama_3_did() -> None:
    """419 times in 54 days: every 3.09 hours."""
    cadence = Cadence(mtbf_hours=None, ranks=16_384, interruptions=0)
    chosen = cadence.after_save(done=0, steps=1, training_seconds=1.0, save_seconds=1.0)
    assert chosen.mtbf_seconds == pytest.approx(54 * 24 * HOUR / 419)


def test_a_slower_save_lengthens_the_interval_by_the_mean_of_all_saves() -> None:
    cadence = Cadence(mtbf_hours=1.0, ranks=1, interruptions=0)
    first = cadence.after_save(done=1, steps=1, training_seconds=1.0, save_seconds=1.0)
    second = cadence.after_save(done=2, steps=1, training_seconds=1.0, save_seconds=3.0)
    assert (first.save_seconds, second.save_seconds) == (1.0, 2.0)
    assert second.steps > first.steps


def test_a_save_that_costs_more_than_the_failures_still_leaves_a_step() -> None:
    cadence = Cadence(mtbf_hours=1e-6, ranks=1, interruptions=9)
    assert cadence.after_save(done=1, steps=1, training_seconds=1.0, save_seconds=60.0).steps == 1


def test_a_rate_without_auto_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"checkpoint.mtbf_hours has no effect; set checkpoint.cadence to 'auto'"):
        CheckpointConfig(mtbf_hours=3.0)
