"""Ticks from days down to nanoseconds."""

import pytest

from traincope.figures.drawing.time_axis import MAX_TICKS, instant, ticks

S = 1_000_000_000


def test_a_window_of_seconds_has_round_seconds() -> None:
    assert ticks(0, 8 * S).texts == ("0", "1 s", "2 s", "3 s", "4 s", "5 s", "6 s", "7 s")


def test_a_short_window_far_from_the_begin_counts_from_its_first_tick() -> None:
    result = ticks(3600 * S + 10, 3600 * S + 4010)
    assert result.since_ns == 3600 * S + 500
    assert result.texts[:3] == ("0", "+500 ns", "+1.0 µs")


@pytest.mark.parametrize("length_ns", [1, 3, 17, 999, 10**4, 10**7, 61 * S, 900 * S, 86_400 * S, 54 * 86_400 * S])
@pytest.mark.parametrize("begin_ns", [0, 7, 10**15])
def test_ticks_lie_in_the_window_and_are_few(length_ns: int, begin_ns: int) -> None:
    result = ticks(begin_ns, begin_ns + length_ns)
    assert 1 <= len(result.at_ns) <= MAX_TICKS + 1
    assert all(begin_ns <= at <= begin_ns + length_ns for at in result.at_ns)
    assert len(set(result.texts)) == len(result.texts)


def test_an_instant_has_as_many_digits_as_its_steps_need() -> None:
    assert instant(1_250_000_000, step_ns=10_000_000) == "1.25 s"
    assert instant(340_000, step_ns=20_000) == "340 µs"
    assert instant(3 * 3600 * S + 61 * S, step_ns=60 * S) == "3:01:01"
