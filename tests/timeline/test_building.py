"""Construction of steps, threads and open records of each rank."""

from dataclasses import replace

import numpy as np
import pytest

from tests.timeline.build import Row, action, collective, group, message, phase, rank, stall, step, timeline
from traincope.events import OPEN, Flag, Kind, Phase
from traincope.timeline import OpenRecord, RankTimeline, Step


def only(*rows: Row, ending: str | None = "clean") -> RankTimeline:
    return timeline(rank(0, *rows, groups=[group("fsdp", 0, 1)], ending=ending)).ranks[0]


def test_only_ended_training_steps_are_complete() -> None:
    result = only(step(0, 0, 10), step(1, 10, 30), step(2, 30, 31, flags=Flag.PARTIAL), step(3, 31, OPEN), ending=None)
    assert result.steps == (Step(number=0, start_ns=0, end_ns=10), Step(number=1, start_ns=10, end_ns=30))
    assert [step.length_ns for step in result.steps] == [10, 20]
    assert result.open_step == 3


def test_a_guessed_step_is_a_step() -> None:
    assert len(only(step(0, 0, 10, flags=Flag.GUESSED)).steps) == 1


def test_a_killed_rank_has_its_open_records_outermost_first() -> None:
    gather = collective(40, OPEN, name="all_gather", at=7)
    result = only(
        step(7, 0, OPEN),
        phase(Phase.FORWARD, 10, OPEN, at=7),
        action("F", 20, OPEN, stage=1, microbatch=3, at=7),
        phase(Phase.DATA_WAIT, 25, 30, at=7),
        gather,
        stall(gather, 50, OPEN),
        ending=None,
    )
    assert result.open_records == (
        OpenRecord(what="forward", axis=None, step=7, start_ns=10),
        OpenRecord(what="pipeline action F of stage 1, microbatch 3", axis=None, step=7, start_ns=20),
        OpenRecord(what="all_gather", axis="fsdp", step=7, start_ns=40, in_thread=False),
        OpenRecord(what="the wait for all_gather", axis="fsdp", step=7, start_ns=50),
    )


def test_a_collective_holds_its_thread_until_another_record_begins() -> None:
    result = only(step(7, 0, OPEN), collective(40, OPEN, name="all_gather", at=7), ending=None)
    assert result.open_records == (OpenRecord(what="all_gather", axis="fsdp", step=7, start_ns=40, in_thread=True),)


def test_an_overtaken_collective_is_not_an_open_record() -> None:
    result = only(collective(0, OPEN, sequence=0), collective(10, 20, sequence=1), ending=None)
    assert result.open_records == ()


RECEIVE = message("recv", 0, OPEN, peer=1, tag=5)


@pytest.mark.parametrize(
    "later",
    [
        message("recv", 10, 20, peer=2, tag=5),
        message("recv", 10, 20, peer=1, tag=6),
        message("send", 10, 20, peer=1, tag=5),
        collective(10, 20, name="all_reduce"),
        message("recv", 10, 20, peer=1, tag=5, flags=Flag.RAISED),
    ],
    ids=["of another peer", "of another tag", "the other way", "of the group", "ended by an exception"],
)
def test_a_hanging_receive_is_not_overtaken_by_records_of_other_channels(later: Row) -> None:
    (hung,) = only(RECEIVE, later, ending=None).open_records
    assert (hung.what, hung.start_ns) == ("recv", 0)


def test_a_receive_is_overtaken_by_the_next_from_the_same_peer_under_the_same_tag() -> None:
    assert only(RECEIVE, replace(RECEIVE, start_ns=10, end_ns=20, sequence=1), ending=None).open_records == ()


def test_a_collective_that_hangs_is_not_overtaken_by_a_message_on_its_group() -> None:
    hung = collective(0, OPEN, name="all_reduce")
    assert len(only(hung, message("recv", 10, 20, peer=1), ending=None).open_records) == 1


def test_a_clean_end_leaves_no_open_records() -> None:
    result = only(step(0, 0, OPEN), collective(5, OPEN))
    assert (result.open_step, result.open_records) == (None, ())


def test_an_open_record_lasts_until_the_ranks_last_instant() -> None:
    result = only(phase(Phase.FORWARD, 10, OPEN), phase(Phase.GC, 20, 33), ending=None)
    assert result.last_ns == 33
    assert result.closed(result.of_kind(Kind.PHASE))["end_ns"].tolist() == [33, 33]


def test_the_last_instant_is_that_of_any_thread() -> None:
    result = only(step(0, 0, OPEN), phase(Phase.DATA_WAIT, 5, 99, thread="thread-7"), ending=None)
    assert result.last_ns == 99


def test_records_are_sorted_by_start() -> None:
    result = only(phase(Phase.BACKWARD, 0, 90), phase(Phase.GC, 50, 60), phase(Phase.SYNC, 20, 30))
    assert result.main["start_ns"].tolist() == [0, 20, 50]


def test_building_does_not_change_its_input() -> None:
    records = rank(0, step(0, 0, 10), phase(Phase.FORWARD, 2, OPEN))
    before = records.thread("main").copy()
    timeline(records)
    assert np.array_equal(records.thread("main"), before)


def test_a_rank_without_segments_has_no_timeline() -> None:
    result = timeline(rank(0, step(0, 0, 10)), rank(1), world_size=3)
    assert [rank.rank for rank in result.ranks] == [0]
    assert result.run.missing == (2,)


def test_a_rank_without_records_of_its_training_thread_has_no_steps() -> None:
    result = only(phase(Phase.DATA_WAIT, 5, 9, thread="thread-7"))
    assert (result.steps, len(result.main), result.last_ns) == ((), 0, 9)


def test_the_run_lasts_from_the_first_to_the_last_instant_of_any_rank() -> None:
    result = timeline(rank(0, step(0, 10, 50)), rank(1, step(0, 5, 40)))
    assert (result.start_ns, result.end_ns) == (5, 50)


def test_a_lost_name_or_group_has_a_placeholder() -> None:
    result = only(step(0, 0, 10))
    assert (result.name(99), result.axis(0), result.axis(99)) == ("<name 99>", "fsdp", "<group 99>")
