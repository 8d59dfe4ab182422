"""When the recorder is too expensive: 20 steps of 10 ms, of which 0.5 % is 50 us."""

from traincope.record.throttle import STEPS, Throttle

WALL_NS = 10_000_000


def judged(own_ns: list[int], *, ratio: float | None = 0.005) -> list[bool]:
    throttle = Throttle(ratio)
    return [throttle.too_expensive((own, WALL_NS)) for own in own_ns]


def test_twenty_steps_above_the_ratio_are_too_many() -> None:
    assert judged([51_000] * STEPS) == [False] * (STEPS - 1) + [True]


def test_below_the_ratio_it_stays_as_it_is() -> None:
    assert not any(judged([49_000] * 200))


def test_what_happens_once_is_no_rate() -> None:
    assert not any(judged([40_000] * 10 + [50_000_000] + [40_000] * 100))


def test_after_a_yes_counting_begins_anew() -> None:
    assert [step for step, yes in enumerate(judged([60_000] * 60), start=1) if yes] == [20, 40, 60]


def test_it_can_be_forbidden() -> None:
    assert not any(judged([WALL_NS] * 100, ratio=None))


def test_before_the_first_step_there_is_nothing_to_judge() -> None:
    assert not Throttle(0.005).too_expensive(None)
