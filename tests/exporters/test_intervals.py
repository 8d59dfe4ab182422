"""Records with names, outer ones first, and lanes on which they do not cross."""

from hypothesis import given

from tests.exporters.runs import two_ranks
from tests.exporters.test_balance import intervals as some_intervals
from tests.timeline.build import Row, action, phase
from traincope.events import OPEN, Flag, Kind, Phase
from traincope_exporters.intervals import Interval, collectives, in_thread, intervals, lanes, steps
from traincope_exporters.tracks import tracks


def shown(*more: Row) -> list[Interval]:
    rank = two_ranks(*more).ranks[0]
    return list(intervals(rank, in_thread(rank)))


def test_names_say_what_a_thread_was_in() -> None:
    more = (
        phase(Phase.DATA_WAIT, 900, 950),
        phase(Phase.GC, 950, 960),
        action("F", 960, 970, stage=1, microbatch=3),
        Row(kind=Kind.SPAN, start_ns=970, end_ns=980, name="my span"),
    )
    assert [one.name for one in shown(*more)] == [
        *("data wait", "gc", "F", "my span"),
        *("forward GPT", "wait for all_gather", "forward GPT", "wait for all_gather"),
    ]


def test_a_wait_knows_its_axis_its_step_and_its_bytes() -> None:
    wait = shown()[1]
    assert (wait.start_ns, wait.end_ns, wait.axis, wait.step, wait.value) == (1400, 1700, "tp", 1, 4096)


def test_what_is_open_lasts_until_the_last_instant_of_its_rank() -> None:
    (one,) = [one for one in shown(Row(kind=Kind.SPAN, start_ns=2800, end_ns=OPEN, name="endless")) if one.open]
    assert (one.name, one.start_ns, one.end_ns) == ("endless", 2800, 3000)


def test_what_was_measured_on_the_device_is_no_part_of_the_thread() -> None:
    measured = Row(kind=Kind.PHASE, start_ns=2100, end_ns=2500, name="", phase=Phase.BACKWARD, flags=Flag.DEVICE)
    rank = two_ranks(measured).ranks[0]
    assert [one.name for one in intervals(rank, in_thread(rank, device=True))] == ["backward"]
    assert [track.name for track in tracks(rank)] == ["steps", "training thread", "device", "tp"]


def test_of_two_that_begin_together_the_longer_comes_first() -> None:
    inner, outer = phase(Phase.GC, 2800, 2810), phase(Phase.OPTIMIZER, 2800, 2900)
    assert [one.name for one in shown(inner, outer)][-2:] == ["optimizer", "gc"]


def test_steps_and_collectives_are_apart() -> None:
    rank = two_ranks().ranks[0]
    assert [one.step for one in intervals(rank, steps(rank))] == [0, 1, 2]
    assert [(one.name, one.start_ns, one.end_ns) for one in intervals(rank, collectives(rank))] == [
        ("all_gather", 1400, 1700),
        ("all_gather", 2400, 2700),
    ]


def test_what_crosses_goes_to_another_lane_and_what_is_inside_does_not() -> None:
    assert lanes([0, 2, 4, 12], [10, 5, 15, 14]) == [0, 0, 1, 0]


def test_one_that_begins_when_another_ends_stays_on_its_lane() -> None:
    assert lanes([0, 10], [10, 20]) == [0, 0]


@given(some_intervals)
def test_on_a_lane_all_are_inside_one_another_or_apart(all_: list[tuple[int, int]]) -> None:
    lane_of = lanes([start for start, _ in all_], [end for _, end in all_])
    for lane in set(lane_of):
        own = [one for one, at in zip(all_, lane_of, strict=True) if at == lane]
        for place, (start, end) in enumerate(own):
            for later_start, later_end in own[place + 1 :]:
                assert later_start >= end or later_end <= end or start == end
