import logging

import pytest

from traincope.record import guard as guarding
from traincope.record.guard import SAMPLED, TOLERATED, failure_notes, guard, meter


@pytest.fixture(autouse=True)
def _in_a_run_of_its_own() -> None:
    guarding.begin_run()


def test_an_error_is_logged_once_and_costs_only_its_own_call(caplog: pytest.LogCaptureFixture) -> None:
    @guard
    def hook(value: int) -> int:
        if value < 0:
            raise ValueError("negative")
        return value

    with caplog.at_level(logging.WARNING):
        assert [hook(1), hook(-1), hook(-1), hook(2)] == [1, None, None, 2]
    assert len(caplog.records) == 1
    assert "training goes on: negative" in caplog.text
    (note,) = failure_notes().values()
    assert note == "failed 2 times: ValueError"  # what it said may hold data: it is the log's alone


def test_a_hook_that_goes_on_failing_is_switched_off_until_the_next_run() -> None:
    calls = []

    @guard
    def hook() -> None:
        calls.append(1)
        raise ValueError("always")

    for _ in range(2 * TOLERATED):
        hook()
    assert len(calls) == TOLERATED
    (note,) = failure_notes().values()
    assert note == "switched off: ValueError"
    guarding.begin_run()
    hook()
    assert len(calls) == TOLERATED + 1


def test_an_interrupt_of_the_user_passes() -> None:
    @guard
    def hook() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hook()


def test_the_meter_knows_about_how_much_cpu_time_hooks_took() -> None:
    """Whether every call is timed or every so-maniest, and one inside another only once."""
    from time import thread_time_ns

    def work() -> int:
        return sum(range(2_000))

    for hook in (guard(guard(work)), guard(work, every=SAMPLED)):
        meter.own_ns, started = 0, thread_time_ns()
        for _ in range(100 * SAMPLED):
            hook()
        spent = thread_time_ns() - started
        assert 0.5 * spent < meter.own_ns < 1.5 * spent


def test_the_clock_that_times_a_cheap_hook_does_not_count_as_the_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of which each reading takes 600 ns, around a hook of 50 behind a guard of 70."""
    now_ns = 0

    def reading() -> int:
        nonlocal now_ns
        now_ns += 600
        return now_ns

    def hook() -> None:
        nonlocal now_ns
        now_ns += 50

    monkeypatch.setattr(guarding, "thread_time_ns", reading)
    monkeypatch.setattr(meter, "clock_ns", 600)
    monkeypatch.setattr(meter, "guard_ns", 70)
    guarded = guard(hook, every=SAMPLED)
    meter.own_ns = 0
    for _ in range(10 * SAMPLED):
        guarded()
    assert meter.own_ns == 10 * (SAMPLED * (50 + 70) + 2 * 600)
