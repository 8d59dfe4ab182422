"""Ranks of one host share a clock; wall clocks first align hosts, without a bound."""

from tests.timeline.build import clock, rank, run, step, timeline
from traincope.timeline.clocks.clocks import ClockSource, RankClock, error_between_ns, wall_clocks


def test_ranks_of_one_host_share_one_offset_with_bound_0() -> None:
    first = rank(0, clock(0, 1_000), clock(10, 1_012))
    second = rank(1, clock(0, 1_001))
    clocks = wall_clocks(run(first, second))
    assert [(clock_.offset_ns, clock_.bound_ns, clock_.drift_ppm, clock_.source) for clock_ in clocks.values()] == [
        (1_001, 0, 0.0, "same host"),
        (1_001, 0, 0.0, "same host"),
    ]


def test_unconnected_hosts_use_wall_clocks_without_a_bound() -> None:
    first = rank(0, clock(0, 1_000), boot_id="a")
    second = rank(1, clock(500, 1_000), boot_id="b")
    clocks = timeline(first, second).clocks
    assert [(clock_.offset_ns, clock_.bound_ns, clock_.drift_ppm, clock_.source) for clock_ in clocks] == [
        (1_000, 0, 0.0, "same host"),
        (500, None, None, "wall clocks"),
    ]
    assert error_between_ns(clocks) is None


def test_the_error_between_ranks_of_one_host_is_0() -> None:
    unknown = RankClock(rank=2, host="c", source=ClockSource.WALL_CLOCKS)
    assert error_between_ns([unknown, unknown]) == 0


def test_one_jump_of_the_wall_clock_does_not_change_the_offset() -> None:
    jumped = rank(0, clock(0, 1_000), clock(10, 1_010), clock(20, 9_000_020), clock(30, 1_030))
    assert wall_clocks(run(jumped))[0].offset_ns == 1_000


def test_a_rank_without_clock_records_uses_its_hosts() -> None:
    silent, telling = rank(0, step(0, 5, 9)), rank(1, clock(0, 100))
    assert wall_clocks(run(silent, telling))[0].offset_ns == 100


def test_steps_of_two_hosts_land_on_one_axis() -> None:
    first = rank(0, clock(0, 1_000), step(0, 10, 20), boot_id="a")
    second = rank(1, clock(700, 1_000), step(0, 710, 720), boot_id="b")
    steps = [rank.steps[0] for rank in timeline(first, second).ranks]
    assert [(step.start_ns, step.end_ns) for step in steps] == [(1_010, 1_020), (1_010, 1_020)]
