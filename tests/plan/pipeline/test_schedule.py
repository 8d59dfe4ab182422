"""Timetables of schedules, drawn on paper."""

import pytest

from traincope.errors import UsageError
from traincope.plan.pipeline.actions import Action, Times
from traincope.plan.pipeline.orders import Shape, orders
from traincope.plan.pipeline.schedule import timetable


def begins(name: str, shape: Shape, times: Times) -> dict[str, float]:
    """Action -> its start, in the unit of the times."""
    table = timetable(orders(name, shape), times)
    return {str(ran.action): ran.start / table.ticks for row in table.rows.values() for ran in row}


def test_gpipe_of_two_ranks_and_two_microbatches() -> None:
    """F = 1 and B = 2: rank 1 begins at 1, and its first backward follows both forwards."""
    assert begins("gpipe", Shape(ranks=2, microbatches=2), Times()) == {
        "0F0": 0, "0F1": 1, "1F0": 1, "1F1": 2, "1B0": 3, "1B1": 5, "0B0": 5, "0B1": 7,
    }  # fmt: skip


def test_a_weight_gradient_runs_while_a_rank_would_wait() -> None:
    """F = 1, I = 1, W = 0.5: rank 0's backward can begin at 3, after rank 1's I and before its W."""
    times = Times(backward_weight=0.5)
    assert begins("zb-1p", Shape(ranks=2, microbatches=1), times) == {
        "0F0": 0, "1F0": 1, "1I0": 2, "1W0": 3, "0I0": 3, "0W0": 4,
    }  # fmt: skip


def test_a_message_between_ranks_takes_its_time() -> None:
    """F = 1, B = 2, half a unit per message: rank 1 begins at 1.5, rank 0's backward at 5; 6 of 14 rank-units work."""
    table = timetable(orders("1f1b", Shape(ranks=2, microbatches=1)), transfer=0.5)
    starts = {str(ran.action): ran.start / table.ticks for row in table.rows.values() for ran in row}
    assert starts == {"0F0": 0, "1F0": 1.5, "1B0": 2.5, "0B0": 5}
    assert (table.idle_ratio, table.idle_over_ideal) == (8 / 14, 8 / 6)
    turned = timetable(orders("zb-v", Shape(ranks=1, microbatches=2, chunks=2)), transfer=0.5)
    assert turned.idle_ratio == 0
    with pytest.raises(UsageError, match="transfer is -1; it must be at least 0"):
        timetable({}, transfer=-1)


def test_a_timetable_ends_with_the_last_action_and_counts_the_rest_as_idle() -> None:
    table = timetable(orders("1f1b", Shape(ranks=4, microbatches=8)))
    assert table.span / table.ticks == 33
    assert table.idle_ratio == pytest.approx(3 / 11)


@pytest.mark.parametrize("unit", [1e-5, 1.0, 1e7])
def test_a_bubble_does_not_depend_on_the_unit_of_time(unit: float) -> None:
    """1F1B over 2 ranks and 4 microbatches: 1/5, in seconds and in nanoseconds."""
    times = Times(forward=unit, backward_input=unit, backward_weight=unit)
    table = timetable(orders("1f1b", Shape(ranks=2, microbatches=4)), times)
    assert table.idle_ratio == pytest.approx(1 / 5, abs=1e-12)
    assert table.span / table.ticks == pytest.approx(15 * unit)


def test_infinite_times_are_refused() -> None:
    for value, must_be in ((float("inf"), "finite"), (float("nan"), "greater than 0")):
        with pytest.raises(UsageError, match=f"backward_weight is {value}; it must be {must_be}"):
            Times(backward_weight=value)


def test_orders_that_wait_for_each_other_are_refused() -> None:
    waiting = {
        0: (Action("F", 0, 0), Action("B", 0, 0), Action("F", 0, 1), Action("B", 0, 1)),
        1: (Action("F", 1, 0), Action("F", 1, 1), Action("B", 1, 0), Action("B", 1, 1)),
    }
    with pytest.raises(UsageError, match="cannot run"):
        timetable(waiting)
