"""Sampling: counts of steps with detail, and the overhead that windows and light steps measure in the job itself."""

from dataclasses import replace

import numpy as np
import pytest

from tests.timeline.build import collective, rank, step, timeline
from traincope import analyze
from traincope.analysis import MeasuredOverhead, Sampling, sampling
from traincope.events import Flag
from traincope.store.job.requests import Cause, WindowRequest
from traincope.timeline import Timeline

MS = 1_000_000
BLOCK = 8
WINDOWS = 40


def requested(recorded: Timeline, first_step: int, *, kernels: bool = False) -> Timeline:
    """The same run with a request for the 7 steps after `first_step`."""
    request = WindowRequest(
        attempt=0,
        first_step=first_step,
        num_steps=7,
        kernels=kernels,
        cause=Cause.SLOW_STEP,
        at_step=3,
        at_wall_ns=0,
    )
    return replace(recorded, run=replace(recorded.run, requests=(request,)))


def sampled(
    *, longer: float = 0.0, noise: float = 0.01, windows: int = WINDOWS, seed: int = 0, disturbed: int = 0
) -> Sampling:
    """Two ranks. Every fourth block of 8 steps is a window, in which steps of 100 ms take `longer`.

    In the first `disturbed` windows, another program doubles the time. As in a recording, the first step of a window
    costs as much, but does not count as detailed.
    """
    random = np.random.default_rng(seed)
    rows, at_ns = [], 0
    for number in range(4 * BLOCK * windows):
        in_window = number // BLOCK % 4 == 1
        length_ns = round(100 * MS * (1 + noise * random.standard_normal()) * (1 + longer * in_window))
        length_ns *= 2 if in_window and number // (4 * BLOCK) < disturbed else 1
        flags = Flag.DETAILED if in_window and number % BLOCK else 0
        rows.append(step(number, at_ns, at_ns + length_ns, flags=flags))
        at_ns += length_ns
    recorded = timeline(*(rank(at, *rows) for at in (0, 1)))
    return sampling(recorded, analyze(recorded).ledger, own_ratio=None)


def test_steps_with_detail_are_counted_without_those_that_lead_in() -> None:
    result = sampled(windows=3)
    assert (result.steps, result.sampled_steps, result.windows) == (3 * 32 - 1, 3 * 7, 3)
    assert (result.first_sampled, result.last_sampled) == (9, 79)


@pytest.mark.slow
@pytest.mark.parametrize("longer", [pytest.param(0.0, marks=pytest.mark.sweep), 0.02])
def test_the_interval_contains_the_truth_in_at_least_90_of_100_draws(longer: float) -> None:
    results = [sampled(longer=longer, windows=12, seed=seed).measured_overhead for seed in range(100)]
    contained = sum(result is not None and result.low <= longer <= result.high for result in results)
    assert contained >= 90


def test_two_percent_of_burned_time_are_found() -> None:
    result = sampled(longer=0.02).measured_overhead
    assert result is not None
    assert result.low > 0.01


def test_a_few_disturbed_windows_hide_no_burned_time() -> None:
    """Three windows of 40 take twice the time, which alone would be 7.5 % on average."""
    result = sampled(longer=0.02, disturbed=3).measured_overhead
    assert result is not None
    assert 0.01 < result.low < 0.02 < result.high < 0.03


def test_a_few_windows_have_no_interval() -> None:
    assert sampled(windows=3).measured_overhead is None


def test_a_run_without_light_steps_has_no_interval() -> None:
    rows = [step(number, number * MS, (number + 1) * MS, flags=Flag.DETAILED) for number in range(100)]
    recorded = timeline(rank(0, *rows))
    result = sampling(recorded, analyze(recorded).ledger, own_ratio=0.001)
    assert (result.sampled_steps, result.windows, result.measured_overhead) == (99, 1, None)


def with_requested_block(*, longer: float) -> Timeline:
    """Every fourth of 4 x 40 blocks is drawn. One more was requested, in which steps take `longer`."""
    rows, at_ns = [], 0
    for number in range(4 * BLOCK * WINDOWS):
        block = number // BLOCK
        flags = Flag.DETAILED if block % 4 == 1 and number % BLOCK else 0
        if block == 10 and number % BLOCK:
            flags = Flag.DETAILED | Flag.REQUESTED
        length_ns = round(100 * MS * (1 + longer * (block == 10)))
        rows.append(step(number, at_ns, at_ns + length_ns, flags=flags))
        at_ns += length_ns
    return requested(timeline(*(rank(at, *rows) for at in (0, 1))), 10 * BLOCK)


def test_requested_windows_are_listed_and_are_no_part_of_the_measured_overhead() -> None:
    """Steps after an anomaly may take any time. The drawn windows cost nothing here."""
    recorded = with_requested_block(longer=3.0)
    assert recorded.requested_steps == dict.fromkeys(range(81, 88), "a slow step (step 3)")
    result = sampling(recorded, analyze(recorded).ledger, own_ratio=None)
    assert result.measured_overhead == MeasuredOverhead(estimate=0.0, low=0.0, high=0.0)
    (window,) = result.requested
    assert (window.first_step, window.last_step, window.recorded_steps, window.ranks_without) == (81, 87, 7, ())
    assert (window.cause, window.at_step, window.kernels) == ("slow_step", 3, False)


def test_a_rank_without_the_requested_steps_is_named() -> None:
    rows = [step(number, number * MS, (number + 1) * MS, flags=Flag.DETAILED) for number in range(16)]
    light = [step(number, number * MS, (number + 1) * MS) for number in range(16)]
    recorded = requested(timeline(rank(0, *rows), rank(1, *rows[:9], *light[9:])), 8)
    (window,) = sampling(recorded, analyze(recorded).ledger, own_ratio=None).requested
    assert (window.recorded_steps, window.ranks_without) == (0, (1,))
    assert recorded.requested_steps == {}, "they have detail without the request"


def test_a_rank_without_steps_takes_no_part_in_the_sampling() -> None:
    """A spare rank only takes weights. The trainers' steps are light, but for one window."""
    rows = [
        step(number, number * MS, (number + 1) * MS, flags=Flag.DETAILED if 8 < number < 16 else 0)
        for number in range(32)
    ]
    recorded = timeline(rank(0, *rows), rank(1, *rows), rank(2, collective(MS, 2 * MS)))
    analysis = analyze(recorded)
    assert [len(each.numbers) for each in analysis.ledger.ranks] == [32, 32, 0]
    assert sampling(recorded, analysis.ledger, own_ratio=None).sampled_steps == 7
