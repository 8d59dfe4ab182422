"""Published bubble formulas, on numbers that can be checked by eye, and against replayed orders."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincope.errors import UsageError
from traincope.plan.pipeline.actions import EQUAL, Times
from traincope.plan.pipeline.bubble import FORMULAS, bubble_over_ideal, bubble_ratio, formula_only_ratio
from traincope.plan.pipeline.orders import SCHEDULES, Shape, orders
from traincope.plan.pipeline.schedule import timetable


@pytest.mark.parametrize(
    ("schedule", "shape", "ratio"),
    [
        ("naive", Shape(ranks=4, microbatches=8), 3 / 4),
        ("gpipe", Shape(ranks=2, microbatches=4), 1 / 5),
        ("gpipe", Shape(ranks=4, microbatches=8), 3 / 11),
        ("1f1b", Shape(ranks=4, microbatches=16), 3 / 19),
        ("1f1b", Shape(ranks=8, microbatches=1), 7 / 8),
        ("1f1b", Shape(ranks=1, microbatches=5), 0),
        ("interleaved", Shape(ranks=4, microbatches=8, chunks=2), 3 / 19),
        ("zb-1p", Shape(ranks=4, microbatches=8), 3 / 27),
        ("zb-v", Shape(ranks=4, microbatches=8, chunks=2), 3 / 51),
    ],
)
def test_idle_share_of_total_time_for_equal_f_i_and_w(schedule: str, shape: Shape, ratio: float) -> None:
    assert bubble_ratio(schedule, shape) == pytest.approx(ratio)


@pytest.mark.parametrize(("schedule", "chunks", "ideal"), [("gpipe", 1, 8), ("1f1b", 1, 8), ("interleaved", 2, 16)])
def test_bubble_over_ideal_time_is_the_fraction_that_papers_print(schedule: str, chunks: int, ideal: int) -> None:
    shape = Shape(ranks=4, microbatches=8, chunks=chunks)
    assert bubble_over_ideal(schedule, shape) == pytest.approx(3 / ideal)


def test_zb_1p_idles_longer_the_shorter_w_is() -> None:
    """(P - 1) (F + I - W) = 3 x (10 + 12 - 7) = 45, with 8 x 29 of work."""
    times = Times(forward=10, backward_input=12, backward_weight=7)
    assert bubble_ratio("zb-1p", Shape(ranks=4, microbatches=8), times) == pytest.approx(45 / (45 + 8 * 29))


def test_zb_h2_fills_idle_time_between_a_ranks_actions_with_w() -> None:
    """3 x (10 + 12 + 2 x 1 - 2 x 7) = 30 with 8 x 29 of work. Equal times leave nothing, nor does a longer W."""
    shape = Shape(ranks=4, microbatches=8)
    times = Times(forward=10, backward_input=12, backward_weight=7)
    assert formula_only_ratio("zb-h2", shape, times, transfer=1) == pytest.approx(30 / (30 + 8 * 29))
    assert formula_only_ratio("zb-h2", shape) == formula_only_ratio("zb-h2", shape, Times(backward_weight=3)) == 0
    assert formula_only_ratio("zb-h2", Shape(ranks=4, microbatches=6)) is None


durations = st.integers(1, 30)
sizes = st.builds(Shape, ranks=st.integers(1, 6), microbatches=st.integers(1, 16), chunks=st.integers(1, 3))
times = st.just(EQUAL) | st.builds(Times, forward=durations, backward_input=durations, backward_weight=durations)


@given(schedule=st.sampled_from(tuple(FORMULAS)), shape=sizes, times=times)
def test_a_formula_agrees_with_the_timetable_of_its_order(schedule: str, shape: Shape, times: Times) -> None:
    expected = bubble_ratio(schedule, shape, times) if SCHEDULES[schedule].refusal(shape) is None else None
    if expected is not None:
        assert timetable(orders(schedule, shape), times).idle_ratio == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("schedule", "shape"),
    [
        ("dualpipev", Shape(ranks=2, microbatches=4, chunks=2)),
        ("zb-1p", Shape(ranks=4, microbatches=3)),
        ("zb-v", Shape(ranks=4, microbatches=6, chunks=2)),
    ],
)
def test_a_schedule_or_size_without_a_published_formula_has_no_bubble(schedule: str, shape: Shape) -> None:
    assert (bubble_ratio(schedule, shape), bubble_over_ideal(schedule, shape)) == (None, None)


def test_an_unknown_schedule_is_reported_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="schedule 'dualpipe' is not known; choose one of gpipe, 1f1b"):
        bubble_ratio("dualpipe", Shape(ranks=2, microbatches=2))


def test_times_must_be_positive() -> None:
    with pytest.raises(UsageError, match="backward_weight is 0; it must be greater than 0"):
        Times(backward_weight=0)
