"""Alignment of hosts by their shared collectives, directly or through other hosts."""

from dataclasses import replace

import numpy as np
import pytest

from tests.timeline.build import Row, clock, collective, group, message, rank, run, step, timeline
from traincope.store import RankRecords
from traincope.timeline import RankClock, build_timeline, error_between_ns

DAY = 86_400_000_000_000
MS = 1_000_000
ROUNDED = 200
"""Drift of 1,000 ppm between the start and the end of a collective here."""
WORLD = group("world", 0, 1)


def shifted(by_ns: int, *rows: Row) -> list[Row]:
    """Move the row to a clock that is `by_ns` ahead."""
    return [replace(row, start_ns=row.start_ns + by_ns, end_ns=row.end_ns + by_ns) for row in rows]


def shared_collective(
    start_ns: int, end_ns: int, *, name: str = "all_reduce", sequence: int = 0, num_bytes: int = 4
) -> Row:
    return collective(start_ns, end_ns, name=name, sequence=sequence, num_bytes=num_bytes)


def pair(first: list[Row], second: list[Row], *, behind_ns: int = 0) -> tuple[RankClock, ...]:
    """Return the clocks of two ranks on two hosts. The second's wall clock is `behind_ns` behind."""
    first_rank = rank(0, clock(0, DAY), *first, groups=[WORLD], boot_id="a")
    other = rank(1, clock(0, DAY - behind_ns), *second, groups=[WORLD], boot_id="b")
    return timeline(first_rank, other).clocks


def test_an_all_reduce_ends_on_each_rank_after_it_begins_on_the_other() -> None:
    """Clocks agree: ends 100 us after the common start bound the error by 100 us + 250 ns of bending."""
    rows = [shared_collective(0, MS // 10)]
    clocks = pair(rows, rows)
    assert [clock.source for clock in clocks] == ["same host", "messages"]
    assert clocks[0].bound_ns == 0
    assert clocks[1].bounds_ns(np.array([DAY])) == pytest.approx([100_000], rel=0.01)


@pytest.mark.parametrize("behind_ns", [0, 3_000 * MS])
def test_the_first_hosts_wall_clock_is_the_axis(behind_ns: int) -> None:
    clocks = pair([shared_collective(0, MS // 10)], [shared_collective(0, MS // 10)], behind_ns=behind_ns)
    assert [clock.offset_ns for clock in clocks] == pytest.approx([DAY, DAY], abs=ROUNDED)


def test_a_late_rank_loosens_the_bound_on_one_side_only() -> None:
    """The second begins 900 us late and both end 100 us later: the offset is between -1 ms and +100 us."""
    clocks = pair([shared_collective(0, MS)], [shared_collective(9 * MS // 10, MS)])
    assert clocks[1].offset_ns == pytest.approx(DAY - 450_000, abs=ROUNDED)
    assert clocks[1].bounds_ns(np.array([DAY])) == pytest.approx([550_000], rel=0.01)


def test_messages_in_both_directions_bound_the_offset() -> None:
    """Sent at 0, received by 300 us; sent back at 300 us, received by 400 us: between -100 us and +300 us."""
    first = [message("send", 0, 10, peer=1, num_bytes=4), message("recv", 10, 400_000, peer=1, num_bytes=4)]
    second = [message("recv", 0, 300_000, peer=0, num_bytes=4), message("send", 300_000, 300_010, peer=0, num_bytes=4)]
    clocks = pair(first, second)
    assert clocks[1].offset_ns == pytest.approx(DAY - 100_000, abs=1_000)
    assert clocks[1].bounds_ns(np.array([DAY])) == pytest.approx([200_000], rel=0.01)


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [shared_collective(0, MS, name="broadcast")],
        [shared_collective(0, MS, name="all_to_all")],
        [shared_collective(0, MS, num_bytes=0)],
        [message("send", 0, 10, peer=1, num_bytes=4)],
    ],
    ids=["nothing", "from the root alone", "perhaps nothing", "no bytes", "only there"],
)
def test_operations_that_may_not_wait_for_the_other_side_are_not_evidence(rows: list[Row]) -> None:
    answers = [message("recv", 0, 9, peer=0, num_bytes=4)] if rows and rows[0].name == "send" else rows
    clocks = pair(rows, answers)
    assert [(clock.bound_ns, clock.source) for clock in clocks] == [(0, "same host"), (None, "wall clocks")]


def test_inconsistent_instances_are_not_evidence() -> None:
    """A barrier on one rank and an all-reduce on the other; and one of which the first rank has two parts."""
    clocks = pair([shared_collective(0, MS, name="barrier")], [shared_collective(0, MS)])
    assert (clocks[1].bound_ns, clocks[1].source) == (None, "wall clocks")
    assert (
        pair([shared_collective(0, MS), shared_collective(2 * MS, 3 * MS)], [shared_collective(0, MS)])[1].bound_ns
        is None
    )


def test_a_barrier_without_bytes_is_evidence() -> None:
    rows = [shared_collective(0, MS // 10, name="barrier", num_bytes=0)]
    assert pair(rows, rows)[1].bound_ns is not None


@pytest.mark.parametrize(
    ("versions", "known"),
    [
        ({"torch": "2.13.0+cpu"}, True),
        ({"torch": "2.13.0", "cuda": "12.8", "nccl": "not used"}, True),
        ({"torch": "2.13.0", "cuda": "12.8", "nccl": "2.27.3"}, False),
        ({"torch": "2.13.0+rocm6.4"}, False),
    ],
)
def test_ends_seen_by_the_host_are_not_evidence_on_gpus(versions: dict[str, str], known: bool) -> None:
    ranks = [rank(number, shared_collective(0, MS), groups=[WORLD], boot_id=str(number)) for number in (0, 1)]
    recorded = run(*ranks)
    recorded.info.versions.clear()
    recorded.info.versions.update(versions)
    assert (build_timeline(recorded).clocks[1].bound_ns is not None) is known


def chain() -> list[RankRecords]:
    """Build three hosts. The second is connected to both others: 100 us to the first, 30 us to the third."""
    to_first, to_third = group("pp", 0, 1), group("pp", 1, 2)
    near, far = shared_collective(0, MS // 10), collective(0, 30_000, name="all_reduce", num_bytes=4)
    both = [near, replace(far, group=1)]
    return [
        rank(0, near, groups=[to_first], boot_id="a"),
        rank(1, *both, groups=[to_first, to_third], boot_id="b"),
        rank(2, *shifted(7 * DAY, far), groups=[to_third], boot_id="c"),
    ]


def test_bounds_add_up_along_a_chain() -> None:
    """The third is connected to the first only through the second. Errors of both chains add up."""
    clocks = timeline(*chain()).clocks
    assert clocks[2].offset_ns == pytest.approx(-7 * DAY, abs=ROUNDED)
    at = np.array([0])
    assert clocks[1].bounds_ns(at) == pytest.approx([100_000], rel=0.01)
    assert clocks[2].bounds_ns(at) == pytest.approx([130_000], rel=0.01)
    bounds = [clock.bound_ns or 0 for clock in clocks]
    assert error_between_ns(clocks) == bounds[1] + bounds[2]
    assert error_between_ns(clocks[:2]) == bounds[1]


def test_a_host_connected_through_one_that_ended_earlier_is_within_its_bound() -> None:
    """The second's clock is 100 ppm fast. It is connected to both others for its 200 s; the third runs to 630 s."""
    ways = group("to first", 0, 1), group("to third", 1, 2)
    seconds, fast = range(200), 1.0001
    rows = [shared_collective(at * 1000 * MS, at * 1000 * MS + MS // 10, sequence=at) for at in seconds]
    shown = [replace(row, start_ns=round(row.start_ns * fast), end_ns=round(row.end_ns * fast)) for row in rows]
    both = [replace(row, group=to) for row in shown for to in (0, 1)]
    end_ns = 630_000 * MS
    clocks = timeline(
        rank(0, *rows, groups=ways[:1], boot_id="a"),
        rank(1, *both, groups=ways, boot_id="b"),
        rank(2, *rows, step(0, 0, end_ns), groups=ways[1:], boot_id="c"),
    ).clocks
    on_axis = clocks[2].on_axis(np.array([100_000 * MS, end_ns]))
    bounds = clocks[2].bounds_ns(on_axis)
    assert bounds is not None
    errors = np.abs(on_axis - [100_000 * MS, end_ns])
    assert (errors < bounds).all()
    assert (bounds[0] < MS, errors[1] > 30 * MS) == (True, True), "the bound must cover this error"
    assert clocks[2].bound_ns == bounds[1]


def test_ranks_of_one_host_share_its_chain() -> None:
    world = group("world", 0, 1, 2)
    hosts = ("a", "b", "b")
    ranks = [
        rank(number, shared_collective(0, MS // 10), groups=[world], boot_id=host) for number, host in enumerate(hosts)
    ]
    _, second, third = timeline(*ranks).clocks
    assert second.bound_ns == third.bound_ns
    assert error_between_ns([second, third]) == 0


def test_a_drifting_clock_is_on_the_axis_at_its_end() -> None:
    """The clock is 100 ppm fast: after 10 s it is 1 ms ahead, and its step still has the correct time."""
    at = range(0, 10_001, 1_000)
    first = [shared_collective(ms * MS, ms * MS + 50_000, sequence=ms) for ms in at]
    second = [shared_collective(ms * 1_000_100, ms * 1_000_100 + 50_000, sequence=ms) for ms in at]
    first_rank = rank(0, *first, step(0, 0, 10_000 * MS), groups=[WORLD], boot_id="a")
    other = rank(1, *second, step(0, 0, 10_000 * 1_000_100), groups=[WORLD], boot_id="b")
    recorded = timeline(first_rank, other)
    assert recorded.clocks[1].drift_ppm == pytest.approx(-100, abs=1)
    assert recorded.ranks[1].steps[0].end_ns == pytest.approx(10_000 * MS, abs=1_000)
    assert recorded.clocks[1].bound_ns == pytest.approx(50_000 + 7_500, rel=0.02)


@pytest.mark.parametrize("at_ns", [1 << 62, -(1 << 62), DAY // 8])
def test_a_damaged_record_only_widens_the_bound(at_ns: int) -> None:
    """With a damaged step or collective the clock is unbounded, or its bound covers the damage."""
    rows = [shared_collective(0, MS // 10)]
    assert pair([*rows, step(0, 0, MS)], [*rows, step(0, at_ns, at_ns + 1)])[1].source == "messages"
    other = [*rows, shared_collective(at_ns, at_ns + MS // 10, sequence=1)]
    bound_ns = pair([*rows, shared_collective(MS, 2 * MS, sequence=1)], other)[1].bound_ns
    assert bound_ns is None or bound_ns > MS
