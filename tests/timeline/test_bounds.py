"""The offset of one clock from another lies where causes and effects leave it, and no wider is the bound."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincope.timeline.bounds import WANDER, Evidence, bounded_offsets
from traincope.timeline.lines import MOST_RATE
from traincope.timeline.offsets import Ints, Offsets, bounds_over, worst_over

SECOND = 1_000_000_000
ROUNDED = 5
"""Each rounding is to the safe side."""

Points = list[tuple[int, int]]
"""(instant, value), ns."""


def evidence(most: Points, least: Points) -> Evidence:
    return Evidence(
        most_at_ns=_column(most, 0), most_ns=_column(most, 1), least_at_ns=_column(least, 0), least_ns=_column(least, 1)
    )


def _column(points: Points, at: int) -> Ints:
    return np.array([point[at] for point in points], dtype=np.int64)


def bounded(most: Points, least: Points, *, end_ns: int = SECOND) -> Offsets | None:
    return bounded_offsets(evidence(most, least), begin_ns=0, end_ns=end_ns)


def test_one_exchange_bounds_by_half_of_its_round_trip_and_then_by_the_most_that_clocks_drift() -> None:
    """Between -100 us and +300 us at 0; a second later 1 ms more, for 500 ppm each is the most; rates bend 0.25 us."""
    found = bounded([(0, 300_000)], [(0, -100_000)])
    assert found is not None
    assert found.offset_ns.tolist() == [100_000, 100_000]
    assert found.bound_ns.tolist() == pytest.approx([200_000 + 3 * 250, 1_200_000 + 3 * 250], abs=ROUNDED)


def test_two_exchanges_far_apart_leave_little_of_the_drift() -> None:
    """0 +- 10 us at 0 s and 1 ms +- 10 us at 10 s: 100 ppm; a line of three has 3 x 2.5 us of bending."""
    most, least = [(0, 10_000), (10 * SECOND, 1_010_000)], [(0, -10_000), (10 * SECOND, 990_000)]
    found = bounded(most, least, end_ns=10 * SECOND)
    assert found is not None
    assert found.offset_ns.tolist() == [0, 1_000_000]
    assert found.drift_ratio == pytest.approx(100e-6)
    assert found.bound_ns.tolist() == pytest.approx([17_500, 17_500], abs=ROUNDED)


def test_beyond_the_evidence_the_bound_grows_with_what_the_slope_may_be() -> None:
    """+- 10 us at 4 s and 6 s, so up to 10 ppm (+ 2.5 us of bending at both): 4 s away 10 us + 4 x 10 us, and that."""
    most, least = [(4 * SECOND, 10_000), (6 * SECOND, 10_000)], [(4 * SECOND, -10_000), (6 * SECOND, -10_000)]
    found = bounded(most, least, end_ns=10 * SECOND)
    assert found is not None
    widened = 10_000 + 2_500
    assert found.bound_ns.tolist() == pytest.approx([5 * widened + 2 * 2_500] * 2, abs=ROUNDED)


@pytest.mark.parametrize("known", [([], []), ([(0, 5)], []), ([], [(0, 5)])])
def test_without_evidence_from_both_sides_nothing_is_bounded(known: tuple[Points, Points]) -> None:
    assert bounded(*known) is None


def test_evidence_that_contradicts_itself_bounds_nothing() -> None:
    assert bounded([(0, 0)], [(0, 9_000_000)]) is None


def test_a_clock_that_was_slewed_in_between_costs_precision_only_there() -> None:
    """5 ms in 10 s of 500 ppm, which no one line goes through; before and after it the clocks run alike."""
    at = np.arange(0, 60 * SECOND, SECOND // 10)
    true = np.clip((at - 20 * SECOND) // 2_000, 0, 5_000_000)
    found = bounded_offsets(
        Evidence(most_at_ns=at, most_ns=true + 20_000, least_at_ns=at, least_ns=true - 20_000),
        begin_ns=0,
        end_ns=60 * SECOND,
    )
    assert found is not None
    error = np.abs(found.convert(at) - at - true)
    assert (error <= found.bounds_ns(at)).all()
    assert found.bounds_ns(at[at < 10 * SECOND]).max() < 50_000


APART = np.concatenate([np.arange(0, 40), np.arange(160, 200)]) * SECOND
"""Nobody met for two minutes."""


@pytest.mark.parametrize("wander", [0.0, WANDER], ids=["steady", "wandering"])
def test_over_a_time_in_which_nobody_met_the_rate_of_before_and_after_leads(wander: float) -> None:
    """At any rate the offset could go 60 ms in a minute; at one that wanders by 1 ppm in 20 s it cannot.

    The true rate is 50 ppm, or rises from there as fast as it may.
    """

    def true(at: Ints) -> Ints:
        return np.rint(50e-6 * at + wander / (20 * SECOND) * at.astype(float) ** 2 / 2).astype(np.int64)

    found = bounded_offsets(
        Evidence(most_at_ns=APART, most_ns=true(APART) + 20_000, least_at_ns=APART, least_ns=true(APART) - 20_000),
        begin_ns=0,
        end_ns=200 * SECOND,
    )
    assert found is not None
    at = np.arange(0, 200 * SECOND, SECOND // 3)
    assert (np.abs(found.convert(at) - at - true(at)) <= found.bounds_ns(at)).all()
    assert found.worst_ns < 3_000_000


@st.composite
def clocks(draw: st.DrawFn) -> tuple[int, float, Points, Points]:
    """(offset, drift, most, least): a true line and points that it does not contradict."""
    offset, drift = draw(st.integers(-(10**10), 10**10)), draw(st.integers(-200, 200)) * 1e-6
    points = st.lists(st.tuples(st.integers(0, 30 * SECOND), st.integers(0, 10**7)), min_size=1, max_size=20)
    most = [(at, offset + round(drift * at) + beside + 1) for at, beside in draw(points)]
    least = [(at, offset + round(drift * at) - beside - 1) for at, beside in draw(points)]
    return offset, drift, most, least


AT = np.linspace(0, 30 * SECOND, 50).astype(np.int64)


@settings(deadline=None)
@given(drawn=clocks())
def test_the_truth_is_inside_the_bound(drawn: tuple[int, float, Points, Points]) -> None:
    offset, drift, most, least = drawn
    found = bounded(most, least, end_ns=30 * SECOND)
    assert found is not None
    truth = AT + offset + np.rint(drift * AT).astype(np.int64)
    assert (np.abs(found.convert(AT) - truth) <= found.bounds_ns(AT)).all()


@settings(deadline=None)
@given(drawn=clocks(), kept=st.integers(1, 20))
def test_more_evidence_never_widens_the_bound(drawn: tuple[int, float, Points, Points], kept: int) -> None:
    _, _, most, least = drawn
    some = bounded(most[:kept], least[:kept], end_ns=30 * SECOND)
    every = bounded(most, least, end_ns=30 * SECOND)
    assert some is not None
    assert every is not None
    assert (every.bound_ns <= some.bound_ns + ROUNDED).all()


@settings(deadline=None)
@given(drawn=clocks())
def test_the_bound_is_what_the_lines_leave_and_no_more(drawn: tuple[int, float, Points, Points]) -> None:
    """Both ends of the interval at 0 are reached by a line: moved by the bending, no point forbids its slope there."""
    _, _, most, least = drawn
    end_ns = 10 * SECOND
    most, least = ([(at // 3, value) for at, value in points] for points in (most, least))  # one piece, 600 ppm
    found = bounded(most, least, end_ns=end_ns)
    assert found is not None
    bend = WANDER * end_ns / 4
    width = float(found.bound_ns[0]) - bend
    for side in (-1, 1):
        begin = float(found.offset_ns[0]) + side * (width - bend - ROUNDED)
        slopes = [-MOST_RATE, MOST_RATE]
        high = min([slopes[1], *((value + bend - begin) / at for at, value in most if at)])
        low = max([slopes[0], *((value - bend - begin) / at for at, value in least if at)])
        assert low <= high + 1e-9


def test_converting_there_and_back_changes_nothing() -> None:
    """At 1.7e18 ns, today's, as exact as at 0."""
    now = 1_760_000_000 * SECOND
    offsets = Offsets(
        at_ns=np.array([now, now + 10 * SECOND]),
        offset_ns=np.array([-3_000_000_007, -3_000_000_007 + 1_000_000]),
        bound_ns=np.array([10, 30]),
    )
    times = now + np.arange(0, 10 * SECOND, 12_345_679)
    assert offsets.convert(times[:1]).tolist() == [now - 3_000_000_007]
    assert np.abs(offsets.convert_back(offsets.convert(times)) - times).max() <= 1
    assert offsets.bounds_ns(np.array([now + 5 * SECOND])).tolist() == [21]
    assert offsets.worst_ns == 30


def test_outside_its_knots_the_bound_grows_by_what_clocks_can_drift() -> None:
    """The offset stays what it was, and 1,000 ppm of 3 s are 3 ms."""
    offsets = Offsets(at_ns=np.array([0, SECOND]), offset_ns=np.array([7, 9]), bound_ns=np.array([10, 30]))
    times = np.array([-3 * SECOND, 0, SECOND, 4 * SECOND])
    assert (offsets.convert(times) - times).tolist() == [7, 7, 9, 9]
    assert offsets.bounds_ns(times).tolist() == [3_000_011, 11, 31, 3_000_031]


def test_over_two_an_error_grows_by_the_drift_meanwhile_and_the_worst_is_looked_for_where_the_first_is_known() -> None:
    """The first knows 10 s, within 1 ms, the second only their first, within 1 us: after 9 s more 9 ms."""
    first = Offsets(at_ns=np.array([0, 10 * SECOND]), offset_ns=np.array([0, 0]), bound_ns=np.array([10**6, 10**6]))
    second = Offsets(at_ns=np.array([0, SECOND]), offset_ns=np.array([5, 5]), bound_ns=np.array([1_000, 1_000]))
    begin_ns = 1_000_001 + 1_001 + 1_001
    """1 ms and a thousandth of it, a microsecond; 1 ns of rounding each, and one of the product."""
    assert bounds_over((first, second), np.array([5, 10 * SECOND + 5])).tolist() == [begin_ns, begin_ns + 9_000_000]
    assert worst_over((first, second)) == begin_ns + 9_000_000
    assert worst_over(()) == 0
