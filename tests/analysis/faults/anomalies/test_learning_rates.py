"""Learning rates of ranks that get the same gradients: a schedule of each rank's own is found, and nothing else."""

from collections.abc import Callable
from dataclasses import replace
from math import cos, pi
from typing import Any

import pytest

from tests.timeline.build import Row, phase, rank, step, timeline
from traincope.analysis import Finding, analyze
from traincope.events import LEARNING_RATES, Kind, Phase

MS = 1_000_000
BLOCK, STEPS = 7, 100

Schedule = Callable[[int, int], Any]
"""Rank and step to the rate."""


def found(schedule: Schedule, *, ranks: int = 3, size: int | None = None, shift: int = 0) -> Finding | None:
    """The finding, from readings in every 7th step. `size`: of the group. `shift`: how far the last rank is ahead."""
    records = []
    for number in range(ranks):
        ahead = shift if number == ranks - 1 else 0
        rows, details = [], {}
        for at in range(STEPS):
            begin = at * 10 * MS
            rows += [step(at, begin, begin + 10 * MS), phase(Phase.FORWARD, begin, begin + 10 * MS, at=at)]
            if at and at % BLOCK == 0:
                group = len(details) + 1
                details[group] = {
                    "optimizer": 0,
                    "replicas": [0, ranks - 1, size or ranks],
                    "parameters": [4, 2],
                    "rates": [0.5, schedule(number, at + ahead)],
                }
                event = Row(kind=Kind.EVENT, start_ns=begin, end_ns=begin, name=LEARNING_RATES, step=at)
                rows.append(replace(event, group=group))
        records.append(replace(rank(number, *rows), details=details))
    findings = analyze(timeline(*records)).verdict
    return next((each for each in findings if each.kind == "replicas_differ"), None)


def plateau(number: int, at: int) -> float:
    """Rank 1 divides its rate by ten in step 40."""
    return 0.005 if number == 1 and at >= 40 else 0.05


def test_the_rank_whose_schedule_differs_is_shown_with_its_rate_and_step() -> None:
    finding = found(plateau)
    assert finding is not None
    assert (finding.ranks, finding.steps, finding.confidence) == ((1,), (49,), "medium")
    assert "different learning rates since step 49 at the latest" in finding.evidence
    assert "in step 98 with 0.05 on ranks 0, 2, 0.005 on rank 1" in finding.evidence
    assert "all_reduce the loss or metric before scheduler.step(metric)" in finding.advice


def test_of_two_ranks_none_is_the_odd_one() -> None:
    finding = found(plateau, ranks=2)
    assert finding is not None
    assert finding.ranks == ()


def cosine(_: int, at: int) -> float:
    return 0.1 * min(at / 20, 1.0) * (1 + cos(pi * at / STEPS)) / 2


@pytest.mark.parametrize("shift", [0, 1, -1])
def test_a_common_schedule_is_no_difference_also_one_step_ahead(shift: int) -> None:
    """It warms up for 20 steps, then falls to 0."""
    assert found(cosine, shift=shift) is None


@pytest.mark.parametrize("period", [10, 14, 16, 24, 36])
def test_a_common_rate_that_rises_and_falls_again_is_no_difference(period: int) -> None:
    assert found(lambda _, at: 0.05 * (1.1 + cos(2 * pi * at / period)), shift=1) is None


def test_a_rate_beyond_all_of_one_that_rises_and_falls_is_a_difference() -> None:
    finding = found(lambda number, at: 0.05 * (3 + cos(2 * pi * at / 24)) * (3 if number == 1 else 1))
    assert finding is not None
    assert finding.ranks == (1,)


def test_a_rate_that_falls_in_steps_one_of_them_earlier_is_no_difference() -> None:
    assert found(lambda _, at: 0.1 * 0.1 ** ((at - 1) // 35), shift=1) is None


@pytest.mark.parametrize(
    "schedule",
    [
        pytest.param(lambda number, at: 0.05 if number == 1 and at >= 90 else 0.1, id="two readings"),
        pytest.param(lambda number, _: 0.1 * (1 + 0.001 * number), id="rounding"),
        pytest.param(lambda number, _: None if number == 1 else 0.1, id="unknown on a device"),
    ],
)
def test_what_is_no_difference(schedule: Schedule) -> None:
    assert found(schedule) is None


def test_ranks_without_records_may_be_the_majority() -> None:
    assert found(plateau, size=8) is None
