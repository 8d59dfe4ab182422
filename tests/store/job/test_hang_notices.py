"""Notices of hangs are read back over all attempts; incomplete or foreign lines are left out."""

from dataclasses import replace
from pathlib import Path

import pytest

from traincope.store.job.hang_notices import MAX_READ_BYTES, HangNotice, append_notice, read_notices, standing_notice
from traincope.store.layout import HANGS_FILE, attempt_directory

FIRST = HangNotice(
    attempt=0, at_wall_ns=7, culprits=(1, 3), sentence="ranks 1, 3 stood at train.py:9", judged={"kind": "stuck"}
)
SECOND = HangNotice(attempt=1, at_wall_ns=8, culprits=(), sentence="ranks 0, 1 made no progress")


NAMED = replace(FIRST, at_wall_ns=9, culprits=(2,))
NOTICES = (FIRST, replace(SECOND, attempt=0), NAMED)
FAR = f'{{"attempt": 0, "at_wall_ns": {10**40}, "culprits": [1]}}'


def test_notices_are_read_in_order(tmp_path: Path) -> None:
    assert read_notices(tmp_path) == ()
    for notice in (FIRST, SECOND):
        attempt_directory(tmp_path, notice.attempt).mkdir()
        append_notice(tmp_path, notice)
    assert read_notices(tmp_path) == (FIRST, SECOND)


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


@pytest.mark.parametrize(
    ("last_step_ns", "standing"),
    [(None, FIRST), (6, FIRST), (7, NAMED), (8, NAMED), (9, None)],
)
def test_a_notice_stands_until_a_step_is_completed(last_step_ns: int | None, standing: HangNotice | None) -> None:
    """One stop at 7, in which the job went on. Another one at 8 without a culprit, which later evidence shows at 9."""
    assert standing_notice(reversed(NOTICES), last_step_ns=last_step_ns) == standing


def test_a_notice_without_a_culprit_stands_alone() -> None:
    assert standing_notice([FIRST, SECOND], last_step_ns=7) == SECOND
    assert standing_notice([], last_step_ns=None) is None
