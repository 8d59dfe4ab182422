"""Ranks of one launch share a run directory and an attempt, whatever was there before and whoever is late."""

import os
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import traincope
from tests.distributed.pool import Pool
from traincope.record.identity import identify
from traincope.record.meeting import FIRST_LOOKS, Meeting
from traincope.store import read_run


def record(out: Path | None, directory: Path) -> str:
    os.chdir(directory)
    with traincope.run(out) as run:
        dist.all_reduce(torch.ones(1))
        dist.barrier()
        dist.all_reduce(torch.ones(1))
        run.step()
        return str(run.directory)


def record_with_rank_0_late(out: Path) -> None:
    if dist.get_rank() == 0:
        time.sleep(0.3)
    record(out, out.parent)


def record_on_rank_1_alone(out: Path) -> None:
    if dist.get_rank() == 1:
        with traincope.run(out) as run:
            run.step()
    dist.barrier()


def test_a_larger_world_in_the_same_directory_is_the_next_attempt_of_all_its_ranks(
    tmp_path: Path, two_ranks: Pool, four_ranks: Pool
) -> None:
    out = tmp_path / "run"
    two_ranks.run(record, out, tmp_path)
    four_ranks.run(record, out, tmp_path)
    two_ranks.run(record, out, tmp_path)
    found = {p.name: sorted(rank.name for rank in p.iterdir()) for p in sorted(out.glob("attempt-*"))}
    two, four = [f"rank-{n:05d}" for n in range(2)], [f"rank-{n:05d}" for n in range(4)]
    assert found == {"attempt-000": two, "attempt-001": four, "attempt-002": two}
    assert not list(out.glob("provisional-*"))
    assert read_run(out).missing == ()


def test_ranks_that_nothing_names_share_the_run_that_rank_0_began(tmp_path: Path, four_ranks: Pool) -> None:
    directories = set(four_ranks.run(record, None, tmp_path))
    (run,) = (tmp_path / "traincope_runs").iterdir()
    assert directories == {str(run)}
    assert [rank.rank for rank in read_run(run).ranks] == [0, 1, 2, 3]


def test_nobody_waits_for_a_late_rank_0_and_all_meet_all_the_same(tmp_path: Path, two_ranks: Pool) -> None:
    two_ranks.run(record_with_rank_0_late, tmp_path / "run")
    records = read_run(tmp_path / "run")
    assert (records.attempts, records.missing, records.problems) == (1, (), ())


def test_a_rank_whose_rank_0_does_not_record_keeps_its_records(tmp_path: Path, two_ranks: Pool) -> None:
    two_ranks.run(record_on_rank_1_alone, tmp_path / "run")
    records = read_run(tmp_path / "run")
    assert [rank.rank for rank in records.ranks] == [1]
    assert records.missing == (0,)


KILLED_BEFORE_THE_GROUP = """
import os, signal, sys
import traincope
os.environ |= {"RANK": sys.argv[2], "WORLD_SIZE": "2"}
with traincope.run(sys.argv[1]):
    with traincope.span("loading"):
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_ranks_killed_before_they_met_are_read_where_they_stood(tmp_path: Path) -> None:
    for rank in ("0", "1"):
        command = [sys.executable, "-c", KILLED_BEFORE_THE_GROUP, str(tmp_path / "run"), rank]
        subprocess.run(command, check=False, timeout=60)
    records = read_run(tmp_path / "run")
    assert [rank.rank for rank in records.ranks] == [0, 1]
    assert records.info.world_size == 2
    assert "never met the others" in records.problems[0]
    assert all(rank.names[int(rank.thread("main")["name"][-1])] == "loading" for rank in records.ranks)


def look_in_vain(out: Path) -> tuple[int, int]:
    """Round trips that 200 looks of rank 1 cost while rank 0 does not record, and after the store has failed."""
    asked = 0
    if dist.get_rank() == 1:
        place = Meeting(out=out, root=out, identity=identify({}))
        place._store = store = Counting()
        for _ in range(200):
            assert place.look() is None
        asked = store.asked
        store.fails = True
        place._looks = 0
        for _ in range(200):
            assert place.look() is None
        return asked, store.asked - asked
    return 0, 0


class Counting:
    """A store in which nobody has written."""

    asked = 0
    fails = False

    def check(self, _keys: list[str]) -> bool:
        self.asked += 1
        if self.fails:
            raise RuntimeError("the store's host is gone")
        return False


def test_a_word_that_never_comes_is_asked_for_seldom_and_a_broken_store_once(tmp_path: Path, two_ranks: Pool) -> None:
    (_, (in_vain, broken)) = two_ranks.run(look_in_vain, tmp_path / "run")
    assert FIRST_LOOKS <= in_vain <= FIRST_LOOKS + 2
    assert broken == 1
