"""Steps are slow compared with the median of earlier steps."""

from traincope.live.node.slow_steps import NUM_REMEMBERED, SlowSteps


def test_a_slow_step_is_found_by_comparison_with_earlier_steps() -> None:
    slow = SlowSteps([100] * 15)
    assert slow.judge([1000]) == [None]  # 15 steps are too few to judge by
    assert slow.judge([150, 151, 100]) == [None, 1.51, None]


def test_the_median_follows_the_latest_steps() -> None:
    slow = SlowSteps([100] * NUM_REMEMBERED)
    assert slow.judge([300] * NUM_REMEMBERED) == [3.0] * NUM_REMEMBERED
    assert slow.judge([300]) == [None]
