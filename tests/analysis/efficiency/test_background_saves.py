"""The cost of background saves to the steps during them, on runs whose step lengths are known."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.timeline.build import Row, phase, rank, step, timeline
from traincope.analysis.analyze import Analysis, analyze
from traincope.analysis.efficiency.background_saves import BackgroundSaves, background_saves
from traincope.events import CHECKPOINT_FAILED, CHECKPOINT_SAVED, Kind, Phase
from traincope.timeline import LedgerClock

MS = 1_000_000
CALL_MS = 5
"""Time that a call that begins a save stops the training."""


def saved(
    lengths_ms: Sequence[float], saves: Sequence[tuple[int, int]], *, end: str = CHECKPOINT_SAVED
) -> Iterator[Row]:
    """Steps of these lengths, after a warm-up step. A save (step, count) begins with a step and ends in the middle of
    the last of its steps. The call takes CALL_MS more of its first step.
    """
    calls, ends = {first for first, _ in saves}, {first + count - 1 for first, count in saves}
    at = 0
    for number, length in enumerate([50.0, *lengths_ms]):
        last = at + round(length * MS) + CALL_MS * MS * (number in calls)
        yield step(number, at, last)
        if number in calls:
            yield replace(phase(Phase.CHECKPOINT_STALL, at, at + CALL_MS * MS, at=number), name="async_save checkpoint")
        if number in ends:
            middle = (at + last) // 2
            yield Row(kind=Kind.EVENT, start_ns=middle, end_ns=middle, name=end, step=number)
        at = last


def analysis(*ranks: Sequence[Row]) -> Analysis:
    return analyze(timeline(*(rank(number, *rows) for number, rows in enumerate(ranks))))


def cost(*ranks: Sequence[Row]) -> BackgroundSaves:
    result = analysis(*ranks).background_saves
    assert result is not None
    return result


SAVES = tuple((10 * number + 5, 3) for number in range(10))
"""Ten saves that take three steps each, of 104 steps."""


def lengths(*, during: float, usual: float = 100.0) -> list[float]:
    inside = {first + at for first, count in SAVES for at in range(count)}
    return [during if number in inside else usual for number in range(1, 105)]


def test_a_save_costs_what_its_steps_take_longer() -> None:
    result = cost([*saved(lengths(during=104), SAVES)])
    assert (result.saves, result.steps, result.reason) == (10, 30, None)
    assert result.extra_ns is not None
    assert (result.extra_ns.estimate, result.extra_ns.low, result.extra_ns.high) == (12 * MS, 12 * MS, 12 * MS)
    assert result.ratio == 120 / (104 * 100 + 120)


def test_the_call_is_a_stall_and_no_part_of_the_cost() -> None:
    result = analysis([*saved(lengths(during=100), SAVES)])
    assert result.ledger.total("checkpoint_stall") == 10 * CALL_MS * MS
    assert result.background_saves is not None
    assert result.background_saves.extra_ns is not None
    assert result.background_saves.extra_ns.estimate == 0


def test_the_job_has_the_mean_length_of_its_ranks() -> None:
    """Only rank 2's steps take longer. The lowest rank has the saves."""
    result = cost(
        [*saved(lengths(during=100), SAVES)],
        [*saved(lengths(during=100), ())],
        [*saved(lengths(during=112), ())],
    )
    assert result.extra_ns is not None
    assert result.extra_ns.estimate == pytest.approx(12 * MS)


@pytest.mark.slow
@pytest.mark.parametrize("longer", [0.0, 3.0])
def test_the_interval_contains_the_truth_in_noise(longer: float) -> None:
    """Steps vary by 2 ms. Of 40 runs, at most 5 intervals may miss: at 5 % each, more have a chance of 1 in 70."""
    missed = 0
    for seed in range(40):
        noise = np.random.default_rng(seed).normal(0, 2, 104)
        noisy = [length + float(each) for length, each in zip(lengths(during=100 + longer), noise, strict=True)]
        extra = cost([*saved(noisy, SAVES)]).extra_ns
        assert extra is not None
        missed += not extra.low <= 3 * longer * MS <= extra.high
    assert missed <= 5


def test_few_saves_have_no_estimate() -> None:
    result = cost([*saved(lengths(during=104), SAVES[:3])])
    assert (result.saves, result.steps, result.extra_ns, result.ratio) == (3, 9, None, None)
    assert result.reason == "only 3 saves follow 3 steps or more without a save, not 8"


def test_saves_without_a_pause_have_nothing_to_be_compared_with() -> None:
    back_to_back = [(3 * number + 1, 3) for number in range(30)]
    result = cost([*saved([100.0] * 91, back_to_back)])
    assert (result.saves, result.extra_ns) == (30, None)
    assert result.reason == "only 0 saves follow 3 steps or more without a save, not 8"


def test_without_a_background_save_that_ended_there_is_no_answer() -> None:
    assert analysis([*saved(lengths(during=104), ())]).background_saves is None
    assert analysis([*saved(lengths(during=104), SAVES, end=CHECKPOINT_FAILED)]).background_saves is None


def test_saves_without_a_complete_step_have_an_unknown_cost() -> None:
    result = cost([row for row in saved(lengths(during=104), SAVES) if row.kind != Kind.STEP])
    assert (result.saves, result.steps, result.extra_ns, result.ratio) == (10, 0, None, None)


def test_saves_that_are_in_flight_together_are_left_out() -> None:
    """The save of steps 5 to 14 is still in flight when another begins at step 10. The later nine are separate."""
    overlapping = [(5, 10), (10, 3), *((20 * number + 30, 3) for number in range(9))]
    usual = [100.0] * 210
    result = cost([*saved(usual, overlapping)])
    assert result.saves == 9
    assert result.extra_ns is not None
    assert result.extra_ns.estimate == 0


def test_after_a_save_that_failed_the_next_one_counts() -> None:
    failed = [*saved([100.0] * 104, SAVES[:1], end=CHECKPOINT_FAILED)]
    others = [row for row in saved(lengths(during=104), SAVES) if row.step >= SAVES[1][0] or row.kind == Kind.STEP]
    rows = [row for row in failed if row.kind != Kind.STEP] + others
    assert cost(rows).saves == 9


def test_steps_on_the_gpus_clocks_give_no_cost() -> None:
    result = analysis([*saved(lengths(during=104), SAVES)])
    ledger = replace(result.ledger, clock=LedgerClock.DEVICE)
    by_marks = background_saves(result.timeline, ledger)
    assert by_marks is not None
    assert (by_marks.saves, by_marks.extra_ns, by_marks.ratio) == (10, None, None)
    assert by_marks.reason is not None
    assert by_marks.reason.startswith("the GPUs' clocks measure the steps")
