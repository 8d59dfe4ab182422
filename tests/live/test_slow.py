from traincope.live.slow import REMEMBERED, SlowSteps


def test_a_step_is_slow_beside_those_before_it() -> None:
    slow = SlowSteps([100] * 15)
    assert slow.judge(1000) is None  # fifteen are too few to tell
    assert slow.judge(150) is None
    assert slow.judge(151) == 1.51
    assert slow.judge(100) is None


def test_the_usual_follows_the_latest_steps() -> None:
    slow = SlowSteps([100] * REMEMBERED)
    assert slow.judge(300) == 3.0
    for _ in range(REMEMBERED):
        slow.judge(300)
    assert slow.judge(300) is None
