"""The throttle: 20 steps of 10 ms, of which 0.5 % is 50 us."""

from traincope.record.session.throttle import WINDOW_STEPS, Throttle

WALL_NS = 10_000_000


def judged(own_ns: list[int], *, ratio: float | None = 0.005) -> list[bool]:
    throttle = Throttle(ratio)
    return [throttle.is_too_expensive((recorder_ns, WALL_NS)) for recorder_ns in own_ns]


def test_twenty_steps_above_the_ratio_are_too_expensive() -> None:
    assert judged([51_000] * WINDOW_STEPS) == [False] * (WINDOW_STEPS - 1) + [True]


def test_below_the_ratio_nothing_changes() -> None:
    assert not any(judged([49_000] * 200))


def test_a_single_expensive_step_is_ignored() -> None:
    assert not any(judged([40_000] * 10 + [50_000_000] + [40_000] * 100))


def test_counting_restarts_after_a_verdict() -> None:
    assert [step for step, yes in enumerate(judged([60_000] * 60), start=1) if yes] == [20, 40, 60]


def test_the_throttle_can_be_switched_off() -> None:
    assert not any(judged([WALL_NS] * 100, ratio=None))


def test_before_the_first_step_nothing_is_judged() -> None:
    assert not Throttle(0.005).is_too_expensive(None)
