"""Bounds of clock offsets: the truth is inside them, and they are as tight as the evidence allows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincope.arrays import Ints
from traincope.timeline.clocks.bounds import WANDER, Evidence, bounded_offsets
from traincope.timeline.clocks.lines import MAX_RATE
from traincope.timeline.clocks.offsets import Offsets, errors_over, max_error_over

SECOND = 1_000_000_000
ROUNDED = 5
"""Allowance for roundings, each to the safe side."""

Points = list[tuple[int, int]]
"""(Instant, value) pairs in ns."""


def evidence(uppers: Points, lowers: Points) -> Evidence:
    return Evidence(
        upper_at_ns=_column(uppers, 0),
        upper_ns=_column(uppers, 1),
        lower_at_ns=_column(lowers, 0),
        lower_ns=_column(lowers, 1),
    )


def _column(points: Points, at: int) -> Ints:
    return np.array([point[at] for point in points], dtype=np.int64)


def bounded(uppers: Points, lowers: Points, *, end_ns: int = SECOND) -> Offsets | None:
    return bounded_offsets(evidence(uppers, lowers), begin_ns=0, end_ns=end_ns)


def test_one_exchange_bounds_by_half_its_round_trip_plus_the_largest_drift() -> None:
    """The offset lies between -100 us and +300 us at 0. 1 s later the bound is 1 ms wider (at most 500 ppm per clock).

    Rates bend by 0.25 us.
    """
    result = bounded([(0, 300_000)], [(0, -100_000)])
    assert result is not None
    assert result.offset_ns.tolist() == [100_000, 100_000]
    assert result.bound_ns.tolist() == pytest.approx([200_000 + 3 * 250, 1_200_000 + 3 * 250], abs=ROUNDED)


def test_two_distant_exchanges_bound_the_drift() -> None:
    """0 +- 10 us at 0 s and 1 ms +- 10 us at 10 s: 100 ppm; a line of three has 3 x 2.5 us of bending."""
    uppers, lowers = [(0, 10_000), (10 * SECOND, 1_010_000)], [(0, -10_000), (10 * SECOND, 990_000)]
    result = bounded(uppers, lowers, end_ns=10 * SECOND)
    assert result is not None
    assert result.offset_ns.tolist() == [0, 1_000_000]
    assert result.drift_ratio == pytest.approx(100e-6)
    assert result.bound_ns.tolist() == pytest.approx([17_500, 17_500], abs=ROUNDED)


def test_the_bound_grows_with_the_possible_slope_beyond_the_evidence() -> None:
    """+- 10 us at 4 s and 6 s, so up to 10 ppm (+ 2.5 us of bending at both): 4 s away 10 us + 4 x 10 us, and that."""
    uppers, lowers = [(4 * SECOND, 10_000), (6 * SECOND, 10_000)], [(4 * SECOND, -10_000), (6 * SECOND, -10_000)]
    result = bounded(uppers, lowers, end_ns=10 * SECOND)
    assert result is not None
    widened = 10_000 + 2_500
    assert result.bound_ns.tolist() == pytest.approx([5 * widened + 2 * 2_500] * 2, abs=ROUNDED)


@pytest.mark.parametrize("known", [([], []), ([(0, 5)], []), ([], [(0, 5)])])
def test_evidence_from_one_side_gives_no_bound(known: tuple[Points, Points]) -> None:
    assert bounded(*known) is None


def test_contradictory_evidence_gives_no_bound() -> None:
    assert bounded([(0, 0)], [(0, 9_000_000)]) is None


def test_a_slewed_clock_is_less_exact_only_during_the_slew() -> None:
    """5 ms in 10 s of 500 ppm, which no single line fits; before and after it the clocks have the same rate."""
    at = np.arange(0, 60 * SECOND, SECOND // 10)
    true = np.clip((at - 20 * SECOND) // 2_000, 0, 5_000_000)
    result = bounded_offsets(
        Evidence(upper_at_ns=at, upper_ns=true + 20_000, lower_at_ns=at, lower_ns=true - 20_000),
        begin_ns=0,
        end_ns=60 * SECOND,
    )
    assert result is not None
    error = np.abs(result.convert(at) - at - true)
    assert (error <= result.bounds_ns(at)).all()
    assert result.bounds_ns(at[at < 10 * SECOND]).max() < 50_000


APART = np.concatenate([np.arange(0, 40), np.arange(160, 200)]) * SECOND
"""Evidence with a gap of two minutes."""


@pytest.mark.parametrize("wander", [0.0, WANDER], ids=["steady", "wandering"])
def test_rates_before_and_after_bridge_a_gap_in_the_evidence(wander: float) -> None:
    """At any rate the offset could change by 60 ms per minute; at a rate that wanders by 1 ppm in 20 s it cannot.

    The true rate is 50 ppm, or rises from there as fast as allowed.
    """

    def true(at: Ints) -> Ints:
        return np.rint(50e-6 * at + wander / (20 * SECOND) * at.astype(float) ** 2 / 2).astype(np.int64)

    result = bounded_offsets(
        Evidence(upper_at_ns=APART, upper_ns=true(APART) + 20_000, lower_at_ns=APART, lower_ns=true(APART) - 20_000),
        begin_ns=0,
        end_ns=200 * SECOND,
    )
    assert result is not None
    at = np.arange(0, 200 * SECOND, SECOND // 3)
    assert (np.abs(result.convert(at) - at - true(at)) <= result.bounds_ns(at)).all()
    assert result.worst_ns < 3_000_000


@st.composite
def clocks(draw: st.DrawFn) -> tuple[int, float, Points, Points]:
    """Draw (offset, drift, uppers, lowers): a true line and points that do not contradict it."""
    offset, drift = draw(st.integers(-(10**10), 10**10)), draw(st.integers(-200, 200)) * 1e-6
    points = st.lists(st.tuples(st.integers(0, 30 * SECOND), st.integers(0, 10**7)), min_size=1, max_size=20)
    uppers = [(at, offset + round(drift * at) + distance + 1) for at, distance in draw(points)]
    lowers = [(at, offset + round(drift * at) - distance - 1) for at, distance in draw(points)]
    return offset, drift, uppers, lowers


AT = np.linspace(0, 30 * SECOND, 50).astype(np.int64)


@settings(deadline=None)
@given(drawn=clocks())
def test_the_truth_is_inside_the_bound(drawn: tuple[int, float, Points, Points]) -> None:
    offset, drift, uppers, lowers = drawn
    result = bounded(uppers, lowers, end_ns=30 * SECOND)
    assert result is not None
    truth = AT + offset + np.rint(drift * AT).astype(np.int64)
    assert (np.abs(result.convert(AT) - truth) <= result.bounds_ns(AT)).all()


@settings(deadline=None)
@given(drawn=clocks(), kept=st.integers(1, 20))
def test_more_evidence_never_widens_the_bound(drawn: tuple[int, float, Points, Points], kept: int) -> None:
    _, _, uppers, lowers = drawn
    some = bounded(uppers[:kept], lowers[:kept], end_ns=30 * SECOND)
    every = bounded(uppers, lowers, end_ns=30 * SECOND)
    assert some is not None
    assert every is not None
    assert (every.bound_ns <= some.bound_ns + ROUNDED).all()


@settings(deadline=None)
@given(drawn=clocks())
def test_the_bound_is_tight(drawn: tuple[int, float, Points, Points]) -> None:
    """Both ends of the interval at 0 are reached by a line: moved by the bending, no point forbids its slope there."""
    _, _, uppers, lowers = drawn
    end_ns = 10 * SECOND
    uppers, lowers = ([(at // 3, value) for at, value in points] for points in (uppers, lowers))  # one piece, 600 ppm
    result = bounded(uppers, lowers, end_ns=end_ns)
    assert result is not None
    bend = WANDER * end_ns / 4
    width = float(result.bound_ns[0]) - bend
    for side in (-1, 1):
        begin = float(result.offset_ns[0]) + side * (width - bend - ROUNDED)
        slopes = [-MAX_RATE, MAX_RATE]
        high = min([slopes[1], *((value + bend - begin) / at for at, value in uppers if at)])
        low = max([slopes[0], *((value - bend - begin) / at for at, value in lowers if at)])
        assert low <= high + 1e-9


def test_converting_there_and_back_changes_nothing() -> None:
    """Conversion is as exact at 1.7e18 ns, today's time, as at 0."""
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


def test_the_bound_grows_with_possible_drift_outside_the_knots() -> None:
    """The offset is constant, and 1,000 ppm of 3 s are 3 ms."""
    offsets = Offsets(at_ns=np.array([0, SECOND]), offset_ns=np.array([7, 9]), bound_ns=np.array([10, 30]))
    times = np.array([-3 * SECOND, 0, SECOND, 4 * SECOND])
    assert (offsets.convert(times) - times).tolist() == [7, 7, 9, 9]
    assert offsets.bounds_ns(times).tolist() == [3_000_011, 11, 31, 3_000_031]


def test_errors_of_a_chain_add_drift_and_the_largest_is_within_the_first_offsets_knots() -> None:
    """The first covers 10 s within 1 ms; the second covers only their first second within 1 us: 9 s later 9 ms more."""
    first = Offsets(at_ns=np.array([0, 10 * SECOND]), offset_ns=np.array([0, 0]), bound_ns=np.array([10**6, 10**6]))
    second = Offsets(at_ns=np.array([0, SECOND]), offset_ns=np.array([5, 5]), bound_ns=np.array([1_000, 1_000]))
    begin_ns = 1_000_001 + 1_001 + 1_001
    """1 ms and a thousandth of it, a microsecond; 1 ns of rounding each, and one of the product."""
    assert errors_over((first, second), np.array([5, 10 * SECOND + 5])).tolist() == [begin_ns, begin_ns + 9_000_000]
    assert max_error_over((first, second)) == begin_ns + 9_000_000
    assert max_error_over(()) == 0


def test_a_rigid_offset_keeps_durations_and_still_bounds_the_error() -> None:
    offsets = Offsets(
        at_ns=np.array([0, 1_000]), offset_ns=np.array([100, 140], dtype=np.int64), bound_ns=np.array([10, 30])
    )
    times = np.arange(0, 1_001, 50)
    rigid = offsets.rigid()
    assert np.diff(rigid.convert(times)).tolist() == [50] * 20
    assert rigid.convert(np.array([500])).tolist() == [620]
    # The true time lies within the old bound of the old conversion, so within the new bound of the new one.
    apart = np.abs(rigid.convert(times) - offsets.convert(times))
    assert np.all(rigid.bounds_ns(times) >= offsets.bounds_ns(times) + apart - 1)
    assert rigid.bound_ns.tolist() == [10 + 20, 30 + 20]
