"""Replays with a known idle time, by formula or by hand."""

from collections.abc import Callable
from fractions import Fraction

import pytest

from tests.analysis.pipeline.orders import Orders, gpipe, one_forward_one_backward
from traincope.analysis.pipeline.schedule import Replica, mean_over_stages, recognise, replay
from traincope.plan.pipeline.actions import Action
from traincope.plan.pipeline.orders import Shape, orders
from traincope.plan.pipeline.schedule import Key


def even(orders: Orders, *, forward: int, backward: int) -> dict[Key, int]:
    length = {"F": forward, "B": backward}
    return {(action.kind, action.stage): length[action.kind] for order in orders.values() for action in order}


@pytest.mark.parametrize("order", [gpipe, one_forward_one_backward])
@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (4, 8), (4, 16), (1, 3), (4, 2)])
def test_equal_stages_idle_exactly_as_in_theory(
    order: Callable[[int, int], Orders], stages: int, microbatches: int
) -> None:
    orders = order(stages, microbatches)
    idle = replay(orders, even(orders, forward=10, backward=20), {})
    assert idle is not None
    work = 30 * microbatches
    theory = Fraction(stages - 1, microbatches + stages - 1)
    assert [Fraction(ns, ns + work) for ns in idle.values()] == [theory] * stages


def test_a_slower_stage_makes_the_others_idle() -> None:
    """Two stages, two microbatches, F = B = 10, the second stage 12: it ends at 10 + 4 x 12 + 10 = 68."""
    orders = gpipe(2, 2)
    durations = {("F", 0): 10, ("B", 0): 10, ("F", 1): 12, ("B", 1): 12}
    assert replay(orders, durations, {}) == {0: 68 - 40, 1: 68 - 48}


def test_a_transfer_delays_only_its_consumers() -> None:
    """F0 F1 | wait 3 | F F B B | wait 5 | B0 needs the first B only: 10 + 3 + 40 + 5 + 10 = 68."""
    orders = gpipe(2, 2)
    durations = even(orders, forward=10, backward=10)
    assert replay(orders, durations, {(0, 1): 3, (1, 0): 5}) == {0: 28, 1: 28}


def test_two_stages_of_one_rank_need_no_transfer() -> None:
    orders = {0: (Action("F", 0, 0), Action("F", 1, 0), Action("B", 1, 0), Action("B", 0, 0))}
    assert replay(orders, even(orders, forward=10, backward=10), {(0, 1): 99, (1, 0): 99}) == {0: 0}


def test_a_weight_gradient_fills_the_time_of_a_receive() -> None:
    """The idea of zero-bubble: stage 0 gets its input gradient after I, not after I and W."""
    orders = {
        0: (Action("F", 0, 0), Action("I", 0, 0), Action("W", 0, 0)),
        1: (Action("F", 1, 0), Action("I", 1, 0), Action("W", 1, 0)),
    }
    durations = {(kind, stage): 10 for kind in "FIW" for stage in (0, 1)}
    assert replay(orders, durations, {}) == {0: 50 - 30, 1: 50 - 30}


def test_an_order_without_its_inputs_cannot_run() -> None:
    orders = {0: (Action("B", 0, 0), Action("F", 0, 0)), 1: (Action("F", 1, 0), Action("B", 1, 0))}
    assert replay(orders, even(orders, forward=1, backward=1), {}) is None


def test_a_stage_without_records_delays_no_other() -> None:
    orders = {1: gpipe(2, 2)[1]}
    assert replay(orders, even(orders, forward=10, backward=10), {}) == {1: 0}


def test_the_mean_over_stages_is_by_kind() -> None:
    medians = {("F", 0): 10, ("F", 1): 20, ("B", 0): 40, ("B", 1): 20}
    assert mean_over_stages(medians) == {("F", 0): 15, ("F", 1): 15, ("B", 0): 30, ("B", 1): 30}


def test_one_late_action_does_not_change_a_median() -> None:
    orders = gpipe(1, 3)
    durations = dict.fromkeys(orders[0], 10) | {Action("F", 0, 1): 500}
    assert Replica(orders=orders, durations_ns=durations).medians() == {("F", 0): 10, ("B", 0): 10}


@pytest.mark.parametrize(
    ("orders", "name"),
    [
        (gpipe(2, 4), "gpipe"),
        (gpipe(4, 8), "gpipe"),
        (one_forward_one_backward(2, 4), "1f1b"),
        (one_forward_one_backward(4, 8), "1f1b"),
        (one_forward_one_backward(4, 2), "1f1b"),
        (orders("dualpipev", Shape(ranks=2, microbatches=6, chunks=2)), "dualpipev"),
        (orders("naive", Shape(ranks=3, microbatches=2)), "naive"),
        ({0: tuple(reversed(gpipe(1, 2)[0]))}, "custom"),
        ({0: (*gpipe(1, 1)[0], Action("F", 1, 0), Action("B", 1, 0))}, "custom"),
    ],
)
def test_a_schedule_is_recognised_by_its_order(orders: Orders, name: str) -> None:
    assert recognise(Replica(orders=orders, durations_ns={})) == name
