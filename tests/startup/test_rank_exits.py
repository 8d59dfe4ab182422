"""Failed ranks, found by the process ids, hosts and times that ranks recorded."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from traincope.record.session.identity import this_host
from traincope.startup.notes import ChildEnd, StartedRank, read_notes
from traincope.startup.rank_exits import end_of_all, failed_exits, failed_first, has_silent_rank
from traincope.store.job.launcher import LauncherNote

BEGAN_NS = 1_000
HERE = this_host()


def add_rank(
    run: Path,
    number: int,
    *,
    pid: int,
    attempt: int = 0,
    host: str = HERE.name,
    started_wall_ns: int = 1_500,
    ending: str | None = None,
    place: str | None = None,
) -> None:
    directory = run / (place or f"attempt-{attempt:03d}/rank-{number:05d}")
    directory.mkdir(parents=True)
    card = {"rank": number, "coords": {}, "host": host, "boot_id": HERE.boot_id, "pid": pid, "ending": ending}
    (directory / "rank.json").write_text(json.dumps(card | {"started_wall_ns": started_wall_ns}))


def end(pid: int, exit_code: int, *, at: int, host: str = HERE.name) -> ChildEnd:
    return ChildEnd(pid=pid, exit_code=exit_code, at_wall_ns=at, host=replace(HERE, name=host))


def note(rank: int, exit_code: int, *, at: int, attempt: int = 0, first: bool = False) -> LauncherNote:
    return LauncherNote(attempt=attempt, rank=rank, exit_code=exit_code, first=first, at_wall_ns=at)


def test_ranks_are_found_by_their_process_and_the_killed_one_is_the_culprit_of_its_attempt(tmp_path: Path) -> None:
    """Attempt 0: rank 0 fails on the connection that rank 1's death cost it. Attempt 1: one exits, one is ended."""
    for number, pid in enumerate((10, 11, 12)):
        add_rank(tmp_path, number, pid=pid)
    for number, pid in enumerate((20, 21)):
        add_rank(tmp_path, number, pid=pid, attempt=1)
    ends = [end(99, 1, at=1_600), end(10, 1, at=2_000), end(11, -9, at=2_001), end(21, 5, at=3_000)]
    assert failed_exits(tmp_path, ends=[*ends, end(20, -15, at=3_001)], since_wall_ns=BEGAN_NS) == (
        note(1, -9, at=2_001, first=True),
        note(0, 1, at=2_000),
        note(1, 5, at=3_000, attempt=1, first=True),
        note(0, -15, at=3_001, attempt=1),
    )


def started(number: int, *, pid: int, at: int = 1_500, joins: bool = False) -> StartedRank:
    return StartedRank(pid=pid, rank=number, began_wall_ns=at, host=HERE, joins=joins)


def test_a_rank_that_failed_before_it_recorded_is_found_by_its_start(tmp_path: Path) -> None:
    """Rank 1 was killed, rank 2 ended well, rank 3 began in an earlier command, and rank 4 ended before its start."""
    add_rank(tmp_path, 0, pid=10, place="provisional-here-10")
    ranks = [*(started(number, pid=10 + number) for number in range(3)), started(3, pid=13, at=900), started(4, pid=14)]
    ends = [end(14, -9, at=1_400), *(end(pid, code, at=2_000) for pid, code in ((10, 1), (11, -9), (12, 0), (13, -9)))]
    assert failed_exits(tmp_path, ends=ends, started=ranks, since_wall_ns=BEGAN_NS) == (
        note(1, -9, at=2_000, first=True),
        note(0, 1, at=2_000),
    )


def test_a_rank_that_its_launcher_kills_in_the_end_is_not_the_cause(tmp_path: Path) -> None:
    """torchrun kills rank 0 30 s after its SIGTERM: its handler does not run while it waits for the others."""
    for number in range(2):
        add_rank(tmp_path, number, pid=10 + number)
    late = 2_000 + 30_000_000_000
    ends = [end(11, 1, at=2_000), end(10, -9, at=late)]
    assert failed_exits(tmp_path, ends=ends, since_wall_ns=BEGAN_NS) == (
        note(1, 1, at=2_000, first=True),
        note(0, -9, at=late),
    )
    first = failed_first([started(0, pid=10, joins=True), started(1, pid=11)], ends)
    assert first == (started(1, pid=11), ends[0])
    assert failed_first([started(0, pid=10)], [end(10, -15, at=late)]) is None


def test_the_notes_have_the_start_of_each_rank(tmp_path: Path) -> None:
    host = f"{HERE.name} {HERE.boot_id}"
    (tmp_path / "notes").write_text(
        f"rank 10 0 1500 {host}\nrank 11 1 1500 {host}\njoins 10 {host}\njoins 11 another\nrank 12\n"
    )
    joined, other = read_notes(tmp_path / "notes").started
    assert (joined, other) == (started(0, pid=10, joins=True), started(1, pid=11))


@pytest.mark.parametrize(
    "other",
    [{"host": "another"}, {"started_wall_ns": BEGAN_NS - 1}, {"started_wall_ns": 2_001}],
    ids=["on another host", "of an earlier command", "begun after that process had ended"],
)
def test_an_earlier_process_with_the_same_id_is_not_the_rank(tmp_path: Path, other: dict[str, int]) -> None:
    add_rank(tmp_path, 0, pid=10, **other)  # type: ignore[arg-type]
    assert failed_exits(tmp_path, ends=[end(10, -9, at=2_000)], since_wall_ns=BEGAN_NS) == ()


def test_only_the_first_end_of_a_reused_process_id_is_the_ranks(tmp_path: Path) -> None:
    add_rank(tmp_path, 0, pid=10)
    notes = failed_exits(tmp_path, ends=[end(10, -9, at=2_000), end(10, 1, at=9_000)], since_wall_ns=BEGAN_NS)
    assert notes == (note(0, -9, at=2_000, first=True),)


def test_a_cleanly_ended_rank_is_not_blamed_for_a_reused_process_id(tmp_path: Path) -> None:
    add_rank(tmp_path, 0, pid=10, ending="clean")
    assert failed_exits(tmp_path, ends=[end(10, 0, at=2_000), end(10, 1, at=9_000)], since_wall_ns=BEGAN_NS) == ()


def test_equal_process_ids_on_two_hosts_are_separate_ranks(tmp_path: Path) -> None:
    """Hosts that share the file of notes: rank 0's process on this one still runs when that of rank 1 is killed."""
    add_rank(tmp_path, 0, pid=10)
    add_rank(tmp_path, 1, pid=10, host="another")
    notes = failed_exits(tmp_path, ends=[end(10, -9, at=2_000, host="another")], since_wall_ns=BEGAN_NS)
    assert notes == (note(1, -9, at=2_000, first=True),)


def test_a_rank_that_never_met_the_others_counts_to_the_last_attempt(tmp_path: Path) -> None:
    add_rank(tmp_path, 0, pid=10, attempt=2)
    add_rank(tmp_path, 1, pid=11, place="provisional-host-11")
    notes = failed_exits(tmp_path, ends=[end(11, -9, at=2_000)], since_wall_ns=BEGAN_NS)
    assert notes == (note(1, -9, at=2_000, attempt=2, first=True),)


def test_a_rank_without_a_recorded_or_noted_end_is_silent(tmp_path: Path) -> None:
    add_rank(tmp_path, 0, pid=10, ending="clean")
    add_rank(tmp_path, 1, pid=11)
    add_rank(tmp_path, 2, pid=12, started_wall_ns=BEGAN_NS - 1)
    assert has_silent_rank(tmp_path, noted=[], since_wall_ns=BEGAN_NS)
    assert not has_silent_rank(tmp_path, noted=[note(1, -9, at=2_000)], since_wall_ns=BEGAN_NS)
    assert end_of_all(tmp_path, exit_code=7, at_wall_ns=2_000) == LauncherNote(
        attempt=0, rank=None, exit_code=7, first=False, at_wall_ns=2_000
    )
