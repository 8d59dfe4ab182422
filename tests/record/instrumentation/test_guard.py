import logging
from time import thread_time_ns

import pytest

from traincope.record.instrumentation import guard as guarding
from traincope.record.instrumentation.guard import (
    FIRST_TIMED,
    MAX_ERRORS,
    SAMPLING_INTERVAL,
    failure_notes,
    guard,
    meter,
)


@pytest.fixture(autouse=True)
def _in_a_run_of_its_own() -> None:
    guarding.begin_run()


def test_an_error_is_logged_once_and_affects_only_its_own_call(caplog: pytest.LogCaptureFixture) -> None:
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
    assert note == "failed 2 times: ValueError"  # the error's message may hold data: it goes only to the log


def test_a_hook_that_keeps_failing_is_switched_off_until_the_next_run() -> None:
    calls = []

    @guard
    def hook() -> None:
        calls.append(1)
        raise ValueError("always")

    for _ in range(2 * MAX_ERRORS):
        hook()
    assert len(calls) == MAX_ERRORS
    (note,) = failure_notes().values()
    assert note == "switched off: ValueError"
    guarding.begin_run()
    hook()
    assert len(calls) == MAX_ERRORS + 1


def test_an_interrupt_of_the_user_passes() -> None:
    @guard
    def hook() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hook()


def test_the_meter_counts_the_cpu_time_of_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call or a sample is timed; a hook inside another counts once. The clock costs nothing here.

    After three timed calls, one in 31 is: every call has a cost from the begin, so short runs are counted too.
    """
    now_ns = 0

    def work() -> None:
        nonlocal now_ns
        now_ns += 2_000

    monkeypatch.setattr(guarding, "thread_time_ns", lambda: now_ns)
    monkeypatch.setattr(meter, "clock_ns", 0)
    monkeypatch.setattr(meter, "guard_ns", 0)
    sampled = {"every": SAMPLING_INTERVAL}
    for hook in (
        guard(guard(work)),
        guard(work, **sampled),
        guard(guard(work, **sampled)),
        guard(guard(work), **sampled),
    ):
        meter.own_ns, started = 0, now_ns
        for _ in range(100):
            hook()
            assert meter.own_ns == now_ns - started


def test_the_meter_reads_the_cpu_clock_of_the_thread() -> None:
    """At least the hook's time by that clock is counted."""

    def work() -> None:
        until = thread_time_ns() + 1_000_000
        while thread_time_ns() < until:
            pass

    meter.own_ns = 0
    guard(work)()
    assert meter.own_ns >= 900_000


def test_the_clock_that_times_a_cheap_hook_does_not_count_as_the_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each clock reading takes 600 ns, around a hook of 50 ns behind a guard of 70 ns."""
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
    guarded = guard(hook, every=SAMPLING_INTERVAL)
    meter.own_ns, num_doubled, num_calls = 0, 5, FIRST_TIMED + 1 + 2 + 4 + 8 + 16 + 8 * SAMPLING_INTERVAL
    for _ in range(num_calls):
        guarded()
    assert meter.own_ns == num_calls * (50 + 70) + (FIRST_TIMED + num_doubled + 8) * 2 * 600


def test_one_costly_call_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call, and one in the middle of the run that happens to be timed, take a millisecond; others 2 us."""
    now_ns = calls = 0
    costly = {1, FIRST_TIMED + SAMPLING_INTERVAL}

    def work() -> None:
        nonlocal now_ns, calls
        calls += 1
        now_ns += 1_000_000 if calls in costly else 2_000

    monkeypatch.setattr(guarding, "thread_time_ns", lambda: now_ns)
    monkeypatch.setattr(meter, "clock_ns", 0)
    monkeypatch.setattr(meter, "guard_ns", 0)
    hook, meter.own_ns = guard(work, every=SAMPLING_INTERVAL), 0
    for _ in range(10 * SAMPLING_INTERVAL):
        hook()
    assert meter.own_ns == now_ns == 2 * 1_000_000 + (10 * SAMPLING_INTERVAL - 2) * 2_000


def test_costly_first_calls_count_for_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first three calls take a millisecond, the others 2 us. Only the fifth is counted as one of the first."""
    now_ns = calls = 0

    def work() -> None:
        nonlocal now_ns, calls
        calls += 1
        now_ns += 1_000_000 if calls <= FIRST_TIMED else 2_000

    monkeypatch.setattr(guarding, "thread_time_ns", lambda: now_ns)
    monkeypatch.setattr(meter, "clock_ns", 0)
    monkeypatch.setattr(meter, "guard_ns", 0)
    hook, meter.own_ns = guard(work, every=SAMPLING_INTERVAL), 0
    for _ in range(10 * SAMPLING_INTERVAL):
        hook()
    assert meter.own_ns == now_ns + 1_000_000 - 2_000
