"""Ranks of one launch share a run directory and an attempt, also with earlier attempts and late ranks."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

import traincope
from tests.distributed.ranks.pool import Pool
from tests.ports import free_port
from traincope.events import CLEAN
from traincope.record.session.identity import Identity, identify
from traincope.record.session.options import Options, resolved_witness
from traincope.record.session.recorder import Recorder
from traincope.record.session.rendezvous import EAGER_POLLS, Place, Rendezvous
from traincope.store import read_run


def record(out: Path | None, directory: Path) -> str:
    os.chdir(directory)
    with traincope.run(out) as run:
        dist.all_reduce(torch.ones(1))
        dist.barrier()
        dist.all_reduce(torch.ones(1))
        run.step()
        return str(run.directory)


@contextmanager
def tcp_store(port: int, *, master: int = 0) -> Iterator[None]:
    """Give the group a TCP store. The pool's is on disk."""
    store = dist.TCPStore("127.0.0.1", port, 2, is_master=dist.get_rank() == master)
    with default_store(dist.PrefixStore("job", store)):
        yield


def default_store(store: object) -> AbstractContextManager[object]:
    """Replace the store of the default process group."""
    return patch.object(distributed_c10d, "_get_default_store", lambda: store)


def sockets_opened_by_a_rendezvous(out: Path, port: int) -> int | None:
    """Return how many more sockets rank 0 has after it. The other rank's process holds the store's own sockets."""
    with tcp_store(port, master=1):
        before, rendezvous = num_sockets(), Rendezvous(out=out, root=out, identity=identify({}))
        while rendezvous.poll() is None:
            pass
        after = num_sockets()
        dist.barrier()
    return after - before if dist.get_rank() == 0 else None


def num_sockets() -> int:
    return sum("socket:" in os.path.realpath(path) for path in Path("/proc/self/fd").iterdir())


def keys(out: Path, variable: str, port: int | None) -> str | None:
    """Return the key that this rank passes to an agent. `port`: of a TCP store; None: the pool's store, on disk."""
    os.environ["TRAINCOPE_WITNESS"] = variable
    try:
        rendezvous = Rendezvous(out=out, root=out, identity=identify({}), witness=resolved_witness(Options()))
        with nullcontext() if port is None else tcp_store(port):
            place = None
            while place is None:
                place = rendezvous.poll()
            dist.barrier()
        return place.key
    finally:
        os.environ["TRAINCOPE_WITNESS"] = ""


def record_with_rank_0_late(out: Path) -> None:
    if dist.get_rank() == 0:
        time.sleep(0.3)
    record(out, out.parent)


def record_as_a_spare(out: Path) -> None:
    """Rank 0's launcher has restarted its ranks twice. The launcher of rank 1 is new."""
    with patch.dict(os.environ, {"TORCHELASTIC_RESTART_COUNT": "2" if dist.get_rank() == 0 else "0"}):
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
    ranks_by_attempt = {p.name: sorted(rank.name for rank in p.iterdir()) for p in sorted(out.glob("attempt-*"))}
    two, four = [f"rank-{n:05d}" for n in range(2)], [f"rank-{n:05d}" for n in range(4)]
    assert ranks_by_attempt == {"attempt-000": two, "attempt-001": four, "attempt-002": two}
    assert not list(out.glob("provisional-*"))
    assert read_run(out).missing == ()


def test_a_rank_that_settles_while_it_settles_moves_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second thread, or a signal handler, meets its first collective during the rendezvous."""
    identity = identify({"RANK": "0", "WORLD_SIZE": "1"}, run_id="nested")
    recorder = Recorder(tmp_path, root=tmp_path, identity=identity, disk_budget_bytes=1 << 22)
    poll, polls = Rendezvous.poll, []

    def poll_twice(rendezvous: Rendezvous, **options: bool) -> Place | None:
        polls.append(options)
        thread = threading.Thread(target=recorder.settle, args=(True,))
        thread.start()
        thread.join()
        recorder.settle(True)
        return poll(rendezvous, **options)

    monkeypatch.setattr(Rendezvous, "poll", poll_twice)
    recorder.settle(True)
    assert len(polls) == 1
    assert recorder.place is not None
    assert [path.name for path in tmp_path.glob("attempt-*")] == ["attempt-000"]
    recorder.close(ending=CLEAN)
    assert read_run(tmp_path).ranks[0].problems == ()


def test_ranks_of_an_unnamed_job_share_rank_0s_run(tmp_path: Path, four_ranks: Pool) -> None:
    directories = set(four_ranks.run(record, None, tmp_path))
    (run,) = (tmp_path / "traincope_runs").iterdir()
    assert directories == {str(run)}
    assert [rank.rank for rank in read_run(run).ranks] == [0, 1, 2, 3]


def test_a_restart_finds_the_run_of_its_launch(tmp_path: Path) -> None:
    """Its name contains the time of the first attempt. An id that a person chose is a name itself."""
    launch = "5a662c88-c8bf-492d-8204-4ce824982ef5"
    first = Rendezvous(out=None, root=tmp_path, identity=unnamed(launch)).place_from_environment()
    (first.run / "run.json").write_text(json.dumps({"launch_id": launch}))
    again = Rendezvous(out=None, root=tmp_path, identity=unnamed(launch)).place_from_environment()
    other = Rendezvous(out=None, root=tmp_path, identity=unnamed(launch[::-1])).place_from_environment()
    chosen = Rendezvous(out=None, root=tmp_path, identity=unnamed("job-7")).place_from_environment()
    assert (again.run, first.attempt, again.attempt) == (first.run, 0, 1)
    assert len({first.run, other.run, chosen.run}) == 3
    assert (chosen.name, launch in first.name) == ("job-7", False)


def unnamed(launch: str) -> Identity:
    return identify({"TORCHELASTIC_RUN_ID": launch, "RANK": "0", "WORLD_SIZE": "1"})


def test_a_run_has_the_name_of_its_directory(tmp_path: Path) -> None:
    identity = unnamed("5a662c88-c8bf-492d-8204-4ce824982ef5")
    place = Rendezvous(out=tmp_path / "mine", root=tmp_path, identity=identity).place_from_environment()
    assert (place.name, place.run_id) == ("mine", identity.run_id)


def test_a_declared_name_comes_before_the_directory_and_a_schedulers_after_it(tmp_path: Path) -> None:
    scheduled = identify({"SLURM_JOB_ID": "7"})
    declared = identify({"SLURM_JOB_ID": "7", "TRAINCOPE_RUN_ID": "nightly"})
    given = [Rendezvous(out=tmp_path / "mine", root=tmp_path, identity=each) for each in (scheduled, declared)]
    default = Rendezvous(out=None, root=tmp_path, identity=scheduled)
    names = [each.place_from_environment().name for each in (*given, default)]
    assert names == ["mine", "nightly", "slurm-7"]


def test_no_connection_to_the_store_stays_open(tmp_path: Path, two_ranks: Pool) -> None:
    assert two_ranks.run(sockets_opened_by_a_rendezvous, tmp_path / "run", free_port()) == [0, None]


def test_the_file_of_a_store_is_removed_with_the_job_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch removes it when the last rank's store ends. The next job may have the same `init_method`."""
    monkeypatch.setattr("traincope.record.session.rendezvous.process_group_rank", lambda: (0, 2))
    file = tmp_path / "store"
    stores = [dist.FileStore(str(file), 2) for _rank in range(2)]
    rendezvous = Rendezvous(out=tmp_path / "run", root=tmp_path, identity=identify({}))
    with default_store(dist.PrefixStore("job", stores[0])):
        place = rendezvous.poll()
    assert place is not None
    assert place.launch is not None
    stores.pop()
    assert file.exists()
    stores.pop()
    assert not file.exists()


def test_ranks_do_not_wait_for_a_late_rank_0_but_find_its_run(tmp_path: Path, two_ranks: Pool) -> None:
    two_ranks.run(record_with_rank_0_late, tmp_path / "run")
    records = read_run(tmp_path / "run")
    assert (records.attempts, records.missing, records.problems) == (1, (), ())


def test_launchers_that_count_restarts_differently_share_an_attempt(tmp_path: Path, two_ranks: Pool) -> None:
    two_ranks.run(record_as_a_spare, tmp_path / "run")
    attempts = {
        path.name: sorted(rank.name for rank in path.iterdir()) for path in (tmp_path / "run").glob("attempt-*")
    }
    assert attempts == {"attempt-002": ["rank-00000", "rank-00001"]}


def test_a_rank_whose_rank_0_does_not_record_keeps_its_records(tmp_path: Path, two_ranks: Pool) -> None:
    two_ranks.run(record_on_rank_1_alone, tmp_path / "run")
    records = read_run(tmp_path / "run")
    assert [rank.rank for rank in records.ranks] == [1]
    assert records.missing == (0,)


def test_the_ranks_of_a_job_share_a_key_only_if_it_is_wanted(tmp_path: Path, two_ranks: Pool) -> None:
    first, second = two_ranks.run(keys, tmp_path / "a", "on", free_port())
    assert first is not None
    assert (len(first), first) == (64, second)
    assert two_ranks.run(keys, tmp_path / "b", "on", free_port())[0] != first
    assert two_ranks.run(keys, tmp_path / "c", "", free_port()) == [None, None]


def test_a_store_on_disk_gets_no_key(tmp_path: Path, two_ranks: Pool) -> None:
    assert two_ranks.run(keys, tmp_path / "run", "on", None) == [None, None]


KILLED_BEFORE_THE_GROUP = """
import os, signal, sys
import traincope
os.environ |= {"RANK": sys.argv[2], "WORLD_SIZE": "2"}
with traincope.run(sys.argv[1]):
    with traincope.span("loading"):
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_ranks_killed_before_the_rendezvous_are_readable(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED_BEFORE_THE_GROUP, str(tmp_path / "run")]
    for process in [subprocess.Popen([*command, rank]) for rank in ("0", "1")]:
        assert process.wait(timeout=150) == -signal.SIGKILL
    records = read_run(tmp_path / "run")
    assert [rank.rank for rank in records.ranks] == [0, 1]
    assert records.info.world_size == 2
    assert "never joined a process group" in records.problems[0]
    assert all(rank.names[int(rank.thread("main")["name"][-1])] == "loading" for rank in records.ranks)


def poll_without_answer(out: Path) -> tuple[int, int]:
    """Return the round trips of 200 polls by rank 1 while rank 0 does not record, and after the store has failed."""
    num_checks = 0
    if dist.get_rank() == 1:
        rendezvous = Rendezvous(out=out, root=out, identity=identify({}))
        store = Counting()
        with default_store(store):
            for _ in range(200):
                assert rendezvous.poll() is None
            num_checks = store.num_checks
            store.fails = True
            rendezvous._num_polls = 0
            for _ in range(200):
                assert rendezvous.poll() is None
        return num_checks, store.num_checks - num_checks
    return 0, 0


class Counting:
    """A store in which no choice was ever published."""

    num_checks = 0
    fails = False

    def check(self, _keys: list[str]) -> bool:
        self.num_checks += 1
        if self.fails:
            raise RuntimeError("the store's host is gone")
        return False


def test_a_missing_choice_is_polled_rarely_and_a_broken_store_once(tmp_path: Path, two_ranks: Pool) -> None:
    (_, (in_vain, broken)) = two_ranks.run(poll_without_answer, tmp_path / "run")
    assert EAGER_POLLS <= in_vain <= EAGER_POLLS + 2
    assert broken == 1


def test_a_launch_whose_name_the_other_ranks_cannot_learn_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traincope.record.session.rendezvous.process_group_rank", lambda: (0, 2))
    rendezvous = Rendezvous(out=tmp_path / "run", root=tmp_path, identity=identify({}, run_id="one"))
    with default_store(dist.Store()):  # it has no methods of its own
        place = rendezvous.poll()
    assert place is not None
    assert (place.run_id, place.launch) == ("one", None)
