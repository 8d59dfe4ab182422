"""Notices of hangs are read back over all attempts; incomplete or foreign lines are left out."""

from dataclasses import replace
from pathlib import Path

import pytest

from traincope.store.job.hang_notices import (
    MAX_READ_BYTES,
    HangNotice,
    Progress,
    append_notice,
    read_notices,
    standing_notice,
    stands,
)
from traincope.store.layout import HANGS_FILE, attempt_directory

FIRST = HangNotice(
    attempt=0, at_wall_ns=7, culprits=(1, 3), sentence="ranks 1, 3 stood at train.py:9", judged={"kind": "stuck"}
)
"""Lines of an earlier version, without the number of a step."""
SECOND = HangNotice(attempt=1, at_wall_ns=8, culprits=(), sentence="ranks 0, 1 made no progress")


NAMED = replace(FIRST, at_wall_ns=9, culprits=(2,))
NOTICES = (FIRST, replace(SECOND, attempt=0), NAMED)
FAR = f'{{"attempt": 0, "at_wall_ns": {10**40}, "culprits": [1]}}'


def test_notices_are_read_in_order(tmp_path: Path) -> None:
    assert read_notices(tmp_path) == ()
    second = replace(SECOND, next_step=5)
    for notice in (FIRST, second):
        attempt_directory(tmp_path, notice.attempt).mkdir()
        append_notice(tmp_path, notice)
    assert read_notices(tmp_path) == (FIRST, second)


@pytest.mark.parametrize(
    "line", ['{"attempt": 0, "at', "[]", '{"attempt": 0}', '{"attempt": 0, "at_wall_ns": "x"}', FAR, ""]
)
def test_an_invalid_line_is_left_out(tmp_path: Path, line: str) -> None:
    attempt_directory(tmp_path, 0).mkdir()
    append_notice(tmp_path, FIRST)
    path = attempt_directory(tmp_path, 0) / HANGS_FILE
    path.write_text(f"{line}\n{path.read_text()}")
    assert read_notices(tmp_path) == (FIRST,)


def test_of_a_very_long_file_the_newest_notices_are_read(tmp_path: Path) -> None:
    path = attempt_directory(tmp_path, 0) / HANGS_FILE
    path.parent.mkdir()
    path.write_bytes(b"x" * MAX_READ_BYTES + b"\n")
    append_notice(tmp_path, FIRST)
    assert read_notices(tmp_path) == (FIRST,)
    long = replace(FIRST, sentence=MAX_READ_BYTES * "x")
    append_notice(tmp_path, long)
    append_notice(tmp_path, FIRST)
    assert read_notices(tmp_path) == (FIRST,)


def test_a_notice_stands_until_a_later_step_is_complete() -> None:
    """It was judged when step 4 was the last complete one."""
    notice = replace(FIRST, next_step=5)
    for next_step, is_standing in ((0, True), (5, True), (6, False)):
        # Times do not count: hosts' clocks differ, and a row lacks the time of an evaluation in its step.
        for last_step_ns in (None, 1, 1000):
            progress = Progress(next_steps={1: next_step}, last_step_ns=last_step_ns)
            assert stands(notice, progress) is is_standing


@pytest.mark.parametrize(
    ("culprits", "next_steps", "is_standing"),
    [
        ((1,), {0: 6, 1: 5}, True),
        ((1,), {0: 6, 1: 6}, False),
        ((1, 3), {0: 6, 1: 6, 3: 5}, True),
        ((1,), {0: 6, 2: 6}, False),
        ((1,), {0: 6, 2: 5}, True),
        ((), {0: 6, 1: 5}, True),
        ((), {0: 6, 1: 6}, False),
        ((1,), {}, True),
    ],
    ids=[
        *(
            "the others are a step ahead",
            "the culprit went on",
            "one of the culprits did not",
            "it is elsewhere or left",
        ),
        *("not all others went on", "not all ranks went on", "all ranks went on", "nothing is known"),
    ],
)
def test_the_culprits_steps_count(culprits: tuple[int, ...], next_steps: dict[int, int], *, is_standing: bool) -> None:
    """The agent of rank 1's host saw step 4 complete. Other hosts' ranks may have completed step 5 before they wait."""
    notice = replace(FIRST, culprits=culprits, next_step=5)
    assert stands(notice, Progress(next_steps=next_steps)) is is_standing


def test_a_notice_stands_until_its_culprit_goes_on() -> None:
    """Judged from 5 to 9, announced at 11. Ranks 1 and 3 are the culprits."""
    judged = {"since": 5, "lasted_ns": 4}
    notice = replace(FIRST, at_wall_ns=11, judged=judged, next_step=5)
    for rank, at_ns, is_standing in ((1, 9, True), (1, 10, False), (3, 10, False), (0, 100, True)):
        assert stands(notice, Progress(moved_ns={rank: at_ns})) is is_standing
    without_judgement = replace(notice, judged={})
    assert stands(without_judgement, Progress(moved_ns={1: 11}))
    assert not stands(without_judgement, Progress(moved_ns={1: 12}))


@pytest.mark.parametrize(
    ("last_step_ns", "standing"),
    [(None, FIRST), (6, FIRST), (7, NAMED), (8, NAMED), (9, None)],
)
def test_a_notice_of_an_earlier_version_stands_until_a_step_ends(
    last_step_ns: int | None, standing: HangNotice | None
) -> None:
    """One stop at 7, in which the job went on. Another one at 8 without a culprit, which later evidence shows at 9."""
    assert standing_notice(reversed(NOTICES), Progress(last_step_ns=last_step_ns)) == standing


def test_a_notice_without_a_culprit_stands_alone() -> None:
    assert standing_notice([FIRST, SECOND], Progress(next_steps={0: 9}, last_step_ns=7)) == SECOND
    assert standing_notice([], Progress()) is None


def of_stop(*culprits: int, since: int, at: int) -> HangNotice:
    judged = {"since": since, "lasted_ns": at - since}
    return HangNotice(attempt=0, at_wall_ns=at, culprits=culprits, sentence="", judged=judged, next_step=0)


def test_of_two_stops_in_a_step_the_newest_counts() -> None:
    """Both in start-up, so no step ended. Rank 1's stop went on; rank 0's is announced without, then with its culprit,
    and again by the agent of another host.
    """
    first, unnamed, named = of_stop(1, since=10, at=40), of_stop(since=180, at=240), of_stop(0, since=180, at=250)
    again = replace(named, at_wall_ns=251, judged={})
    assert standing_notice([first], Progress()) == first
    assert standing_notice([first, unnamed], Progress()) == unnamed
    assert standing_notice([again, named, unnamed, first], Progress()) == named


def test_of_a_stop_that_went_on_no_notice_stands() -> None:
    """Rank 1 is known to have gone on at 60, so the notice without a culprit does not stand either."""
    unnamed, named = of_stop(since=10, at=40), of_stop(1, since=10, at=50)
    assert standing_notice([unnamed, named], Progress(moved_ns={1: 60})) is None
    other = of_stop(0, since=10, at=55)
    assert standing_notice([unnamed, named, other], Progress(moved_ns={1: 60})) == other
