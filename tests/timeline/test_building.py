"""Records of each rank -> steps, threads and what was left open."""

from dataclasses import replace

import numpy as np
import pytest

from tests.timeline.build import Row, action, collective, group, message, phase, rank, stall, step, timeline
from traincope.events import OPEN, Flag, Kind, Phase
from traincope.timeline import OpenRecord, RankTimeline, Step


def only(*rows: Row, ending: str | None = "clean") -> RankTimeline:
    return timeline(rank(0, *rows, groups=[group("fsdp", 0, 1)], ending=ending)).ranks[0]


def test_only_steps_that_ended_and_trained_are_complete() -> None:
    found = only(step(0, 0, 10), step(1, 10, 30), step(2, 30, 31, flags=Flag.PARTIAL), step(3, 31, OPEN), ending=None)
    assert found.steps == (Step(number=0, start_ns=0, end_ns=10), Step(number=1, start_ns=10, end_ns=30))
    assert [step.length_ns for step in found.steps] == [10, 20]
    assert found.open_step == 3


def test_a_guessed_step_is_a_step() -> None:
    assert len(only(step(0, 0, 10, flags=Flag.GUESSED)).steps) == 1


def test_a_killed_rank_tells_what_it_was_in_outermost_first() -> None:
    gather = collective(40, OPEN, name="all_gather", at=7)
    found = only(
        step(7, 0, OPEN),
        phase(Phase.FORWARD, 10, OPEN, at=7),
        action("F", 20, OPEN, stage=1, microbatch=3, at=7),
        phase(Phase.DATA_WAIT, 25, 30, at=7),
        gather,
        stall(gather, 50, OPEN),
        ending=None,
    )
    assert found.open_records == (
        OpenRecord(what="forward", axis=None, step=7, start_ns=10),
        OpenRecord(what="pipeline action F of stage 1, microbatch 3", axis=None, step=7, start_ns=20),
        OpenRecord(what="all_gather", axis="fsdp", step=7, start_ns=40, in_thread=False),
        OpenRecord(what="the wait for all_gather", axis="fsdp", step=7, start_ns=50),
    )


def test_a_collectives_own_call_holds_the_thread_until_something_begins_after_it() -> None:
    found = only(step(7, 0, OPEN), collective(40, OPEN, name="all_gather", at=7), ending=None)
    assert found.open_records == (OpenRecord(what="all_gather", axis="fsdp", step=7, start_ns=40, in_thread=True),)


def test_a_collective_that_nobody_waited_for_is_not_what_the_rank_hung_in() -> None:
    found = only(collective(0, OPEN, sequence=0), collective(10, 20, sequence=1), ending=None)
    assert found.open_records == ()


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
def test_a_receive_that_hangs_is_not_overtaken_by_what_is_not_behind_it(later: Row) -> None:
    (hung,) = only(RECEIVE, later, ending=None).open_records
    assert (hung.what, hung.start_ns) == ("recv", 0)


def test_a_receive_is_overtaken_by_the_next_from_the_same_peer_under_the_same_tag() -> None:
    assert only(RECEIVE, replace(RECEIVE, start_ns=10, end_ns=20, sequence=1), ending=None).open_records == ()


def test_a_collective_that_hangs_is_not_overtaken_by_a_message_on_its_group() -> None:
    hung = collective(0, OPEN, name="all_reduce")
    assert len(only(hung, message("recv", 10, 20, peer=1), ending=None).open_records) == 1


def test_after_a_clean_end_nothing_was_under_way() -> None:
    found = only(step(0, 0, OPEN), collective(5, OPEN))
    assert (found.open_step, found.open_records) == (None, ())


def test_an_open_record_lasts_until_the_rank_was_last_seen() -> None:
    found = only(phase(Phase.FORWARD, 10, OPEN), phase(Phase.GC, 20, 33), ending=None)
    assert found.last_ns == 33
    assert found.closed(found.of_kind(Kind.PHASE))["end_ns"].tolist() == [33, 33]


def test_the_last_instant_is_any_threads() -> None:
    found = only(step(0, 0, OPEN), phase(Phase.DATA_WAIT, 5, 99, thread="thread-7"), ending=None)
    assert found.last_ns == 99


def test_a_record_written_late_with_an_early_start_finds_its_place() -> None:
    found = only(phase(Phase.BACKWARD, 0, 90), phase(Phase.GC, 50, 60), phase(Phase.SYNC, 20, 30))
    assert found.main["start_ns"].tolist() == [0, 20, 50]


def test_building_changes_no_record_that_it_was_given() -> None:
    records = rank(0, step(0, 0, 10), phase(Phase.FORWARD, 2, OPEN))
    before = records.thread("main").copy()
    timeline(records)
    assert np.array_equal(records.thread("main"), before)


def test_a_rank_that_left_no_segment_has_no_timeline() -> None:
    found = timeline(rank(0, step(0, 0, 10)), rank(1), world_size=3)
    assert [rank.rank for rank in found.ranks] == [0]
    assert found.run.missing == (2,)


def test_a_rank_whose_training_thread_wrote_nothing_has_no_steps() -> None:
    found = only(phase(Phase.DATA_WAIT, 5, 9, thread="thread-7"))
    assert (found.steps, len(found.main), found.last_ns) == ((), 0, 9)


def test_the_run_reaches_from_the_first_to_the_last_instant_of_any_rank() -> None:
    found = timeline(rank(0, step(0, 10, 50)), rank(1, step(0, 5, 40)))
    assert (found.start_ns, found.end_ns) == (5, 50)


def test_a_name_or_group_that_its_file_lost_has_a_stand_in() -> None:
    found = only(step(0, 0, 10))
    assert (found.name(99), found.axis(0), found.axis(99)) == ("<name 99>", "fsdp", "<group 99>")
