"""What is said of a run over two hosts: as much as their clocks allow, and nothing finer."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.timeline.build import Row, collective, group, message, rank, stall, step, timeline
from tests.timeline.hosts import moved
from traincope.analysis import Analysis, analyze
from traincope.analysis.host import cut
from traincope.analysis.stalls import split_stalls
from traincope.analysis.stragglers import last_to_arrive
from traincope.events import Flag
from traincope.store import read_run
from traincope.timeline import Timeline, build_timeline, match_instances

DEMO = Path(__file__).parents[2] / "sample_runs" / "demo"
"""Stage 0 is on ranks 0 and 1, stage 1 on ranks 2 and 3."""
SECOND = 1_000_000_000
LATE = Flag.DONE_BEFORE_WAIT
PP, WORLD = group("pp", 0, 1), group("world", 0, 1)


def hosts(first: list[Row], second: list[Row], *, apart_ns: int | None, ahead_ns: int = 0) -> Timeline:
    """Two ranks on two hosts; what they met in before bounds their clocks to `apart_ns`, None: in nothing."""
    met = [] if apart_ns is None else [collective(0, apart_ns, name="all_reduce", group=1, num_bytes=4)]
    rows = [[step(0, 0, 1_000_000), *met, *own] for own in (first, second)]
    late = [replace(row, start_ns=row.start_ns + ahead_ns, end_ns=row.end_ns + ahead_ns) for row in rows[1]]
    return timeline(rank(0, *rows[0], groups=[PP, WORLD], boot_id="a"), rank(1, *late, groups=[PP, WORLD], boot_id="b"))


def received(*, apart_ns: int | None, stood_still_ns: int = 100_000) -> tuple[int, int, bool]:
    """(waiting, transfer, told apart) of a receive that was posted at 0 and had come when looked for at 600 us.

    The send was called at 550 us, and looked after at 640 us: on one clock at most 50 us on the wire.
    """
    receive = message("recv", 0, 600_000, peer=1, num_bytes=8, flags=LATE)
    send = message("send", 550_000, 640_000, peer=0, num_bytes=8, flags=LATE)
    stood = stall(receive, 600_000 - stood_still_ns, 600_000)
    made = hosts([receive, stood], [send], apart_ns=apart_ns, ahead_ns=7 * SECOND)
    pieces = cut(made.ranks[0], window_ends=np.empty(0, dtype=np.int64))
    parts = split_stalls(made.ranks[0], pieces, instances=match_instances(made))
    return int(parts.wait_ns.sum()), int(parts.transfer_ns.sum()), bool(parts.split.all())


def test_a_stall_between_hosts_is_split_with_the_error_counted_as_transfer() -> None:
    """Clocks that agree within 10 us: 50 us on the wire, and 10 us more for what is not known."""
    wait_ns, transfer_ns, told = received(apart_ns=10_000)
    assert told
    assert (wait_ns, transfer_ns) == pytest.approx((40_000, 60_000), abs=2_000)


def test_a_stall_shorter_than_the_error_is_not_split() -> None:
    assert received(apart_ns=10_000, stood_still_ns=9_000) == (0, 9_000, False)


def test_without_a_bound_no_such_stall_is_split() -> None:
    assert received(apart_ns=None) == (0, 100_000, False)


@pytest.mark.parametrize(("lead_ns", "last"), [(5_000, -1), (20_000, 1), (-20_000, 0)])
def test_who_came_last_is_undecided_within_the_error(lead_ns: int, last: int) -> None:
    """Nobody looked when the all-gather was done, so durations tell nothing; clocks agree within 10 us."""
    first = collective(500_000, 900_000, group=1, sequence=1, num_bytes=8, flags=LATE)
    second = collective(500_000 + lead_ns, 910_000, group=1, sequence=1, num_bytes=8, flags=LATE)
    found = match_instances(hosts([first], [second], apart_ns=10_000))
    assert last_to_arrive(found)[found.sequence == 1].tolist() == [last]


@cache
def demo(*elsewhere: int) -> Analysis:
    """The sample, some of its ranks 5 days, 2 s of wall time and 80 ppm ahead."""
    other = {"ahead_ns": 5 * 86_400 * SECOND, "drift": 80e-6, "wall_ahead_ns": 2 * SECOND}
    return analyze(build_timeline(moved(read_run(DEMO), elsewhere, **other)))


def test_a_pipeline_over_two_hosts_idles_as_it_does_on_one() -> None:
    """The recorded ranks shared a clock, so the truth is known: the stages' bubbles within 0.1 points."""
    one, two = demo().bubble, demo(2, 3).bubble
    assert one is not None
    assert two is not None
    assert [stage.fraction_ratio for stage in two.stages] == pytest.approx(
        [stage.fraction_ratio for stage in one.stages], abs=1e-3
    )
    assert two.one_clock
    assert two.timetable is not None


def test_its_receives_wait_as_long() -> None:
    waits = [sum(row.wait_ns for row in of.comm if row.axis == "pp") for of in (demo(), demo(2, 3))]
    assert waits[1] == pytest.approx(waits[0], rel=0.02)


@pytest.mark.parametrize("elsewhere", [(1,), (3,), (1, 3), (2, 3), (1, 2, 3)], ids=str)
def test_every_recorded_instant_is_within_the_bound_of_where_it_was(elsewhere: tuple[int, ...]) -> None:
    """Real ranks, real delays; their one clock is the truth."""
    one, two = demo().timeline, demo(*elsewhere).timeline
    for was, told, clock in zip(one.ranks, two.ranks, two.clocks, strict=True):
        error_ns = np.abs(told.main["start_ns"] - was.main["start_ns"] - _axis_moved(one, two)).max()
        assert clock.bound_ns is not None
        assert clock.source == ("messages" if clock.rank in elsewhere else "same host")
        assert error_ns <= clock.bound_ns


def _axis_moved(one: Timeline, two: Timeline) -> int:
    """By how much the host of rank 0 reads its wall clock otherwise, when fewer ranks read it."""
    return two.clocks[0].offset_ns - one.clocks[0].offset_ns


def test_a_picture_is_not_drawn_on_clocks_that_nothing_ties() -> None:
    """All that the ranks did together is taken from the records of one host."""
    run = moved(read_run(DEMO), (2, 3), ahead_ns=0, drift=0.0, wall_ahead_ns=0)
    for segment in run.ranks[2].segments + run.ranks[3].segments:
        segment.records["sequence"] += 1_000_000
    bubble = analyze(build_timeline(run)).bubble
    assert bubble is not None
    assert not bubble.one_clock
    assert bubble.timetable is None


def failed(*, later_ns: int, apart_ns: int | None = 100_000, boot_ids: tuple[str, str] = ("a", "b")) -> Analysis:
    """Rank 1 left its run by an exception at 10 ms, rank 0 so much later; they had met once."""
    met = [] if apart_ns is None else [collective(0, apart_ns, name="all_reduce", num_bytes=4)]
    ends = [10_000_000 + later_ns, 10_000_000]
    ranks = [
        rank(number, step(0, 0, at), *met, groups=[WORLD], boot_id=boot_id, ending="ValueError")
        for number, (at, boot_id) in enumerate(zip(ends, boot_ids, strict=True))
    ]
    return analyze(timeline(*ranks))


@pytest.mark.parametrize(
    ("later_ns", "decided"), [(50_000, False), (1_000_000, True)], ids=["within the error", "beyond it"]
)
def test_which_of_two_hosts_failed_first_is_asserted_only_beyond_the_error(later_ns: int, decided: bool) -> None:
    """Clocks agree within 100 us, and 20 us for a drift that nothing bounds over 10 ms."""
    analysis = failed(later_ns=later_ns)
    assert [fault.follows for fault in analysis.faults] == [False, decided]
    finding = analysis.verdict[0]
    assert finding.ranks == ((1,) if decided else (0, 1))
    assert finding.confidence == ("medium" if decided else "unknown")
    if not decided:
        assert finding.evidence == (
            "rank 1 (ValueError) or rank 0 (ValueError) went first: 0.050 ms apart, and so may be their hosts' clocks"
        )


def test_on_one_host_any_time_between_two_failures_decides() -> None:
    analysis = failed(later_ns=1_000, boot_ids=("a", "a"))
    assert (analysis.verdict[0].ranks, analysis.faults[1].follows) == ((1,), True)


@pytest.mark.parametrize(("later_ns", "ranks"), [(SECOND - 1, (0, 1)), (SECOND, (1,))])
def test_wall_clocks_alone_are_trusted_with_a_second(later_ns: int, ranks: tuple[int, ...]) -> None:
    assert failed(later_ns=later_ns, apart_ns=None).verdict[0].ranks == ranks
