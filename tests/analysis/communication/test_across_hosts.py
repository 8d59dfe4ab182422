"""Results of a run over two hosts are as exact as the error between the clocks allows."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.timeline.build import Row, collective, group, message, rank, stall, step, timeline
from tests.timeline.hosts import moved
from traincope.analysis import Analysis, analyze
from traincope.analysis.attribution.stalls import AmbiguousWait, code, split_stalls
from traincope.analysis.attribution.thread_slices import slice_thread
from traincope.analysis.context import Context, last_to_arrive
from traincope.events import Flag
from traincope.store import read_run
from traincope.timeline import ClockSource, RankTimeline, Timeline, build_timeline, match_instances, with_peers

DEMO = Path(__file__).parents[3] / "sample_runs" / "demo"
"""Ranks 0 and 1 hold stage 0, ranks 2 and 3 stage 1."""
SECOND = 1_000_000_000
ELSEWHERE = {"ahead_ns": 5 * 86_400 * SECOND, "drift": 80e-6, "wall_ahead_ns": 2 * SECOND}
LATE = Flag.DONE_BEFORE_WAIT
PP, WORLD = group("pp", 0, 1), group("world", 0, 1)


def hosts(first: list[Row], second: list[Row], *, apart_ns: int | None, ahead_ns: int = 0) -> Timeline:
    """Build two ranks on two hosts. Earlier collectives bound their clocks to `apart_ns`; None: there are none."""
    shared_calls = [] if apart_ns is None else [collective(0, apart_ns, name="all_reduce", group=1, num_bytes=4)]
    rows = [[step(0, 0, 1_000_000), *shared_calls, *rank_rows] for rank_rows in (first, second)]
    late = [replace(row, start_ns=row.start_ns + ahead_ns, end_ns=row.end_ns + ahead_ns) for row in rows[1]]
    return timeline(rank(0, *rows[0], groups=[PP, WORLD], boot_id="a"), rank(1, *late, groups=[PP, WORLD], boot_id="b"))


def received(*, apart_ns: int | None, stall_ns: int = 100_000) -> tuple[int, int, bool]:
    """Return (wait, transfer, split) of a receive that is posted at 0, with a wait at 600 us after its arrival.

    The send begins at 550 us, with a wait at 640 us: on one clock at most 50 us on the wire.
    """
    receive = message("recv", 0, 600_000, peer=1, num_bytes=8, flags=LATE)
    send = message("send", 550_000, 640_000, peer=0, num_bytes=8, flags=LATE)
    stall_row = stall(receive, 600_000 - stall_ns, 600_000)
    run_timeline = hosts([receive, stall_row], [send], apart_ns=apart_ns, ahead_ns=7 * SECOND)
    slices = slice_thread(run_timeline.ranks[0], window_ends=np.empty(0, dtype=np.int64))
    parts = split_stalls(run_timeline.ranks[0], slices, instances=match_instances(run_timeline))
    return int(parts.wait_ns.sum()), int(parts.transfer_ns.sum()), bool(parts.split.all())


def test_a_stall_between_hosts_is_split_with_the_error_counted_as_transfer() -> None:
    """Clocks agree within 10 us: 50 us on the wire, and 10 us more for the error."""
    wait_ns, transfer_ns, is_split = received(apart_ns=10_000)
    assert is_split
    assert (wait_ns, transfer_ns) == pytest.approx((40_000, 60_000), abs=2_000)


def test_a_stall_shorter_than_the_error_is_not_split() -> None:
    assert received(apart_ns=10_000, stall_ns=9_000) == (0, 9_000, False)


def test_a_stall_between_hosts_without_a_bound_is_not_split() -> None:
    assert received(apart_ns=None) == (0, 100_000, False)


@pytest.mark.parametrize(("lead_ns", "last"), [(5_000, -1), (20_000, 1), (-20_000, 0)])
def test_the_last_rank_is_unknown_within_the_error(lead_ns: int, last: int) -> None:
    """No rank waited when the all-gather ended, so durations give no evidence. Clocks agree within 10 us."""
    first = collective(500_000, 900_000, group=1, sequence=1, num_bytes=8, flags=LATE)
    second = collective(500_000 + lead_ns, 910_000, group=1, sequence=1, num_bytes=8, flags=LATE)
    result = match_instances(hosts([first], [second], apart_ns=10_000))
    assert last_to_arrive(result)[result.sequence == 1].tolist() == [last]


@cache
def demo(*elsewhere: int) -> Analysis:
    """Analyse the sample with some of its ranks 5 days, 2 s of wall time and 80 ppm ahead."""
    return analyze(build_timeline(moved(read_run(DEMO), elsewhere, **ELSEWHERE)))


def test_a_pipeline_over_two_hosts_idles_as_it_does_on_one() -> None:
    """The recorded ranks share a clock, so the truth is known: the stages' bubbles agree within 0.1 points."""
    same_host, two_hosts = demo().bubble, demo(2, 3).bubble
    assert same_host is not None
    assert two_hosts is not None
    assert [stage.fraction_ratio for stage in two_hosts.stages] == pytest.approx(
        [stage.fraction_ratio for stage in same_host.stages], abs=1e-3
    )
    assert two_hosts.one_clock
    assert two_hosts.timetable is not None


def test_receives_over_two_hosts_wait_as_long_as_on_one() -> None:
    waits = [sum(row.wait_ns for row in of.comm if row.axis == "pp") for of in (demo(), demo(2, 3))]
    assert waits[1] == pytest.approx(waits[0], rel=0.02)


@pytest.mark.parametrize("elsewhere", [(1,), (3,), (1, 3), (2, 3), (1, 2, 3)], ids=str)
def test_every_recorded_instant_is_within_the_bound_of_its_true_time(elsewhere: tuple[int, ...]) -> None:
    """Ranks and delays are real; their common clock is the truth."""
    same_host, two_hosts = demo().timeline, demo(*elsewhere).timeline
    for expected, is_split, clock in zip(same_host.ranks, two_hosts.ranks, two_hosts.clocks, strict=True):
        error_ns = np.abs(
            is_split.main["start_ns"] - expected.main["start_ns"] - _axis_moved(same_host, two_hosts)
        ).max()
        assert clock.bound_ns is not None
        assert clock.source == ("messages" if clock.rank in elsewhere else "same host")
        assert error_ns <= clock.bound_ns


def _axis_moved(same_host: Timeline, two_hosts: Timeline) -> int:
    """Return the change of rank 0's wall offset when fewer ranks read the host's wall clock."""
    return two_hosts.clocks[0].offset_ns - same_host.clocks[0].offset_ns


def test_no_timetable_is_drawn_without_a_bound_of_the_clocks() -> None:
    """The test removes all shared collectives from the records of one host."""
    run = moved(read_run(DEMO), (2, 3), ahead_ns=0, drift=0.0, wall_ahead_ns=0)
    for segment in run.ranks[2].segments + run.ranks[3].segments:
        segment.records["sequence"] += 1_000_000
    bubble = analyze(build_timeline(run)).bubble
    assert bubble is not None
    assert not bubble.one_clock
    assert bubble.timetable is None


def failed(*, later_ns: int, apart_ns: int | None = 100_000, boot_ids: tuple[str, str] = ("a", "b")) -> Analysis:
    """Rank 1 leaves its run by an exception at 10 ms, rank 0 later. They share one collective."""
    shared_calls = [] if apart_ns is None else [collective(0, apart_ns, name="all_reduce", num_bytes=4)]
    ends = [10_000_000 + later_ns, 10_000_000]
    ranks = [
        rank(number, step(0, 0, at), *shared_calls, groups=[WORLD], boot_id=boot_id, ending="ValueError")
        for number, (at, boot_id) in enumerate(zip(ends, boot_ids, strict=True))
    ]
    return analyze(timeline(*ranks))


@pytest.mark.parametrize(
    ("later_ns", "decided"), [(50_000, False), (1_000_000, True)], ids=["within the error", "beyond it"]
)
def test_the_first_of_two_failures_is_named_only_beyond_the_clock_error(later_ns: int, decided: bool) -> None:
    """Clocks agree within 100 us + 20 us for a possible drift over 10 ms."""
    analysis = failed(later_ns=later_ns)
    assert [fault.follows for fault in analysis.faults] == [False, decided]
    finding = analysis.verdict[0]
    assert finding.ranks == ((1,) if decided else (0, 1))
    assert finding.confidence == ("medium" if decided else "unknown")
    if not decided:
        assert finding.evidence == (
            "rank 1 (ValueError) or rank 0 (ValueError) ended first: 0.050 ms apart, within the error of their clocks"
        )


def test_any_time_between_two_failures_on_one_host_decides() -> None:
    analysis = failed(later_ns=1_000, boot_ids=("a", "a"))
    assert (analysis.verdict[0].ranks, analysis.faults[1].follows) == ((1,), True)


@pytest.mark.parametrize(("later_ns", "ranks"), [(SECOND - 1, (0, 1)), (SECOND, (1,))])
def test_wall_clocks_decide_failures_a_second_apart(later_ns: int, ranks: tuple[int, ...]) -> None:
    assert failed(later_ns=later_ns, apart_ns=None).verdict[0].ranks == ranks


@pytest.mark.parametrize("elsewhere", [(1, 3), (2, 3), (0, 2)])
def test_ranks_of_one_host_with_copies_of_the_others_split_as_the_whole_run_does(elsewhere: tuple[int, ...]) -> None:
    """FSDP's groups (0, 1) and (2, 3) span hosts, or the pipeline does. Either host is the reference."""
    run = moved(read_run(DEMO), elsewhere, **ELSEWHERE)
    whole, others = build_timeline(run), [records for records in run.ranks if records.rank in elsewhere]
    local = build_timeline(replace(run, ranks=tuple(records for records in run.ranks if records.rank not in elsewhere)))
    members = with_peers(local, others)
    assert {clock.source for clock in members.clocks if clock.rank in elsewhere} == {ClockSource.MESSAGES}
    for own, same in zip(local.ranks, members.ranks, strict=False):
        assert same.main.tobytes() == own.main.tobytes()  # the host keeps its axis
        expected = next(known for known in whole.ranks if known.rank == own.rank)
        wait_ns, is_split = _waits(Context(whole), expected)
        assert _waits(Context(local, members), own) == (
            pytest.approx(wait_ns, rel=1e-3),
            pytest.approx(is_split, abs=0.01),
        )
        assert _waits(Context(local), own)[1] < 0.7


def _waits(context: Context, rank: RankTimeline) -> tuple[int, float]:
    """Sum of the rank's waits, and the share of its stalls that are split."""
    _, split = context.slices(rank)
    return int(split.wait_ns.sum()), float(split.split.mean())


def test_without_a_members_copy_its_groups_stay_unsplit_and_enter_no_result() -> None:
    """Rank 2 of the group of three has no copy. Rank 1's copy enters no table of rank 0's host."""
    three = group("world", 0, 1, 2)
    rows = [[step(0, 0, 1_000_000), collective(at, 900_000, group=0)] for at in (100_000, 500_000)]
    ranks = [rank(at, *each, groups=[three], boot_id="ab"[at]) for at, each in enumerate(rows)]
    ranks[0] = rank(0, *rows[0], stall(rows[0][1], 100_000, 900_000), groups=[three], boot_id="a")
    local = timeline(ranks[0], world_size=3)
    analysis = analyze(local, members=with_peers(local, ranks[1:]))
    _, split = analysis.context.slices(local.ranks[0])
    assert split.cause.tolist() == [code(AmbiguousWait.RECORDS_MISSING)]
    assert (split.wait_ns.tolist(), split.transfer_ns.tolist()) == ([0], [800_000])
    assert [each.rank for each in analysis.ledger.ranks] == [0]
    assert [row.count for row in analysis.comm] == [1]


@pytest.mark.parametrize("same_host", [True, False])
def test_copies_of_a_host_without_shared_collectives_have_unbounded_clocks(same_host: bool) -> None:
    local = timeline(rank(0, step(0, 0, 1_000_000), groups=[WORLD], boot_id="a"), world_size=2)
    other = rank(1, step(0, 0, 1_000_000), groups=[WORLD], boot_id="a" if same_host else "b")
    expected = ClockSource.SAME_HOST if same_host else ClockSource.WALL_CLOCKS
    assert [clock.source for clock in with_peers(local, [other]).clocks] == [ClockSource.SAME_HOST, expected]
