from traincope.live.slow import REMEMBERED, SlowSteps


def test_a_step_is_slow_beside_those_before_it() -> None:
    slow = SlowSteps([100] * 15)
    assert slow.judge([1000]) == [None]  # fifteen are too few to tell
    assert slow.judge([150, 151, 100]) == [None, 1.51, None]


def test_the_usual_follows_the_latest_steps() -> None:
    slow = SlowSteps([100] * REMEMBERED)
    assert slow.judge([300] * REMEMBERED) == [3.0] * REMEMBERED
    assert slow.judge([300]) == [None]
