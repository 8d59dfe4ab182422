"""Rates by a clock made by hand."""

import pytest

from traincope.errors import UsageError
from traincope.live.shipping.limits import BANDWIDTH_VARIABLE, INTERVAL_VARIABLE, Rate, ShipSettings


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def read(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_rate_takes_the_time_of_what_passed_before() -> None:
    clock = Clock()
    rate = Rate(1_000, clock=clock.read, sleep=clock.sleep)
    for _ in range(5):
        assert rate.wait(2_000)
    assert clock.now == pytest.approx(100.0 + 4 * 2.0)  # the fifth begins when the first four have taken 2 s each


def test_a_pause_saves_up_one_second_and_not_more() -> None:
    clock = Clock()
    rate = Rate(1_000, clock=clock.read, sleep=clock.sleep)
    clock.now += 1_000.0
    begin = clock.now
    assert rate.wait(3_000)
    assert rate.wait(1)
    assert clock.now - begin == pytest.approx(2.0)  # 3 s of bytes, 1 s of which was saved up


def test_nothing_passes_once_it_is_over() -> None:
    clock = Clock()
    rate = Rate(1, clock=clock.read, sleep=clock.sleep)
    assert rate.wait(10)
    assert not rate.wait(10, is_over=lambda: clock.now >= 103.0)
    assert clock.now < 104.0


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        (INTERVAL_VARIABLE, "0", "must be above 0"),
        (INTERVAL_VARIABLE, "soon", "must be a number, not 'soon'"),
        (BANDWIDTH_VARIABLE, "10", "must be at least 65536 bytes"),
        (BANDWIDTH_VARIABLE, "inf", "must be a number, not 'inf'"),
        (INTERVAL_VARIABLE, "nan", "must be a number, not 'nan'"),
    ],
)
def test_impossible_settings_are_refused(variable: str, value: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ShipSettings.read({variable: value})


def test_an_agent_goes_on_without_an_impossible_setting(caplog: pytest.LogCaptureFixture) -> None:
    assert ShipSettings.of_an_agent({BANDWIDTH_VARIABLE: "inf", INTERVAL_VARIABLE: "3"}) == ShipSettings(
        interval_seconds=3.0
    )
    assert f"{BANDWIDTH_VARIABLE} must be a number, not 'inf': ignored" in caplog.text
