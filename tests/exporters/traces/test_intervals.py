"""Named intervals, outer ones first, and lanes on which they do not cross."""

from hypothesis import given

from tests.exporters.runs import two_ranks
from tests.exporters.traces.test_balance import intervals as some_intervals
from tests.timeline.build import Row, action, phase
from traincope.events import OPEN, Flag, Kind, Phase
from traincope_exporters.traces.intervals import Interval, collectives, in_thread, intervals, lanes, steps
from traincope_exporters.traces.tracks import tracks


def shown(*more: Row) -> list[Interval]:
    rank = two_ranks(*more).ranks[0]
    return list(intervals(rank, in_thread(rank)))


def test_intervals_have_readable_names() -> None:
    more = (
        phase(Phase.DATA_WAIT, 900, 950),
        phase(Phase.GC, 950, 960),
        action("F", 960, 970, stage=1, microbatch=3),
        Row(kind=Kind.SPAN, start_ns=970, end_ns=980, name="my span"),
    )
    assert [interval.name for interval in shown(*more)] == [
        *("data wait", "gc", "F", "my span"),
        *("forward GPT", "wait for all_gather", "forward GPT", "wait for all_gather"),
    ]


def test_a_wait_has_axis_step_and_bytes() -> None:
    wait = shown()[1]
    assert (wait.start_ns, wait.end_ns, wait.axis, wait.step, wait.value) == (1400, 1700, "tp", 1, 4096)


def test_an_open_interval_lasts_until_the_last_instant_of_its_rank() -> None:
    (interval,) = [
        interval for interval in shown(Row(kind=Kind.SPAN, start_ns=2800, end_ns=OPEN, name="endless")) if interval.open
    ]
    assert (interval.name, interval.start_ns, interval.end_ns) == ("endless", 2800, 3000)


def test_device_intervals_are_not_in_the_thread() -> None:
    measured = Row(kind=Kind.PHASE, start_ns=2100, end_ns=2500, name="", phase=Phase.BACKWARD, flags=Flag.DEVICE)
    rank = two_ranks(measured).ranks[0]
    assert [interval.name for interval in intervals(rank, in_thread(rank, device=True))] == ["backward"]
    assert [track.name for track in tracks(rank)] == ["steps", "training thread", "device", "tp"]


def test_of_equal_starts_the_longer_interval_comes_first() -> None:
    inner, outer = phase(Phase.GC, 2800, 2810), phase(Phase.OPTIMIZER, 2800, 2900)
    assert [interval.name for interval in shown(inner, outer)][-2:] == ["optimizer", "gc"]


def test_steps_and_collectives_are_separate() -> None:
    rank = two_ranks().ranks[0]
    assert [interval.step for interval in intervals(rank, steps(rank))] == [0, 1, 2]
    assert [(interval.name, interval.start_ns, interval.end_ns) for interval in intervals(rank, collectives(rank))] == [
        ("all_gather", 1400, 1700),
        ("all_gather", 2400, 2700),
    ]


def test_a_crossing_interval_gets_another_lane() -> None:
    assert lanes([0, 2, 4, 12], [10, 5, 15, 14]) == [0, 0, 1, 0]


def test_successive_intervals_share_a_lane() -> None:
    assert lanes([0, 10], [10, 20]) == [0, 0]


@given(some_intervals)
def test_intervals_of_a_lane_do_not_cross(all_: list[tuple[int, int]]) -> None:
    lane_of = lanes([start for start, _ in all_], [end for _, end in all_])
    for lane in set(lane_of):
        lane_intervals = [interval for interval, at in zip(all_, lane_of, strict=True) if at == lane]
        for place, (start, end) in enumerate(lane_intervals):
            for later_start, later_end in lane_intervals[place + 1 :]:
                assert later_start >= end or later_end <= end or start == end
