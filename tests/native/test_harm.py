"""A training under the native recorder ends as it does without, whatever is under way at its end."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

import traincope
from tests.faults.victims.victims import Victims
from tests.native.library import needs_library, using
from traincope.events import OPEN, Flag, Kind
from traincope.record.segments import writer
from traincope.store import RankRecords, read_run

pytestmark = needs_library

LATE_SECONDS = 0.5
NUM_INTERRUPTIONS = 300
CODE = 7


@contextmanager
def started(out: str) -> Iterator[traincope.Run | None]:
    if not out:
        yield None
        return
    with using(native=True), traincope.run(out, budget=None, agent=False) as run:
        yield run


def only_rank(path: Path) -> RankRecords:
    (rank,) = read_run(path).ranks
    assert rank.info.probes["native"] == "on"
    return rank


def of_kind(rank: RankRecords, kind: Kind):  # type: ignore[no-untyped-def]
    records = rank.thread("main")
    return records[records["kind"] == kind]


def end_with_a_pending_collective(out: str, ending: str, place: str) -> None:
    """Rank 1, a child, joins the collective later than rank 0 ends."""
    store, rank = f"{place}/store", int(os.fork() == 0)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    tensor = torch.ones(4)
    if rank == 1:
        dist.barrier()
        time.sleep(LATE_SECONDS)
        with suppress(RuntimeError):
            dist.all_reduce(tensor)
        os._exit(0)
    with started(out):
        dist.barrier()
        work = dist.all_reduce(tensor, async_op=True)
        if ending == "exit":
            raise SystemExit(CODE)
        if ending == "_exit":
            os._exit(CODE)
        if ending == "abort":
            os.abort()
        if ending == "destroy":
            dist.destroy_process_group()
        if ending == "fork":
            child = os.fork()
            if child == 0:
                os._exit(CODE)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == CODE
            work.wait()


@pytest.mark.parametrize("ending", ["return", "exit", "_exit", "abort", "destroy", "fork"])
def test_a_process_ends_as_without_the_recorder(victims: Victims, tmp_path: Path, ending: str) -> None:
    ended = {}
    for out in ("", str(tmp_path / "run")):
        place = tmp_path / f"of-{bool(out)}"
        place.mkdir()
        ended[bool(out)] = victims.run(end_with_a_pending_collective, out, ending, str(place))
    assert (ended[True].code, ended[True].err) == (ended[False].code, ended[False].err)
    (barrier, reduced) = of_kind(only_rank(tmp_path / "run"), Kind.COLLECTIVE)
    assert barrier["end_ns"] != OPEN
    if ending == "fork":
        assert reduced["end_ns"] != OPEN
    if ending in ("_exit", "abort"):
        assert reduced["end_ns"] == OPEN


def alone() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def fill_segments(out: str, num_records: int) -> dict[str, int]:
    """Small segments, in which records of Python and of native code take turns."""
    writer.CAPACITY = 50
    alone()
    with started(out) as run:
        for _ in range(num_records):
            with traincope.span("between"):
                dist.all_reduce(torch.ones(1))
        run.step()
    dist.destroy_process_group()
    with open("/proc/self/maps") as maps:
        return {"mapped": sum(out in line for line in maps)}


def test_records_of_both_languages_share_segments_that_are_unmapped_when_full(victims: Victims, tmp_path: Path) -> None:
    num_records = 2_000
    ended = victims.train(fill_segments, tmp_path / "run", num_records)
    assert ended.code == 0, ended.err
    rank = only_rank(tmp_path / "run")
    collectives, stalls, spans = (of_kind(rank, kind) for kind in (Kind.COLLECTIVE, Kind.STALL, Kind.SPAN))
    assert len(collectives) == len(stalls) == len(spans) == num_records
    assert (spans["start_ns"] < collectives["start_ns"]).all()
    assert (collectives["start_ns"] < stalls["start_ns"]).all()
    assert (stalls["end_ns"] < spans["end_ns"]).all()
    assert collectives["sequence"].tolist() == list(range(num_records))
    assert ended.result["mapped"] <= 2


class Interrupted(Exception):
    """An exception of the training's own signal handler."""


def be_interrupted(out: str) -> int:
    """A handler raises at any instant of the loop, also while native code asks Python for a segment.

    Returns the number of exceptions that reached the training. Python loses those in a finaliser.
    """
    writer.CAPACITY, writer.RETRY_NS = 20, 0
    alone()
    num_interrupted, in_loop = 0, False

    def interrupt(*_: object) -> None:
        """Raise once, and again only if the loop goes on, because the next signal may come after the loop."""
        nonlocal in_loop
        if in_loop:
            in_loop = False
            raise Interrupted

    with started(out):
        signal.signal(signal.SIGALRM, interrupt)
        for round_number in range(NUM_INTERRUPTIONS):
            try:
                delay = 0.0005 + (round_number % 7) * 0.0001
                signal.setitimer(signal.ITIMER_REAL, delay, 10 * delay)
                while True:
                    in_loop = True
                    dist.all_reduce(torch.ones(1))
            except Interrupted:
                num_interrupted += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
    return num_interrupted


def test_exceptions_of_a_signal_handler_reach_the_training(victims: Victims, tmp_path: Path) -> None:
    ended = victims.train(be_interrupted, tmp_path / "run")
    assert (ended.code, ended.result) == (0, NUM_INTERRUPTIONS), ended.err
    assert len(of_kind(only_rank(tmp_path / "run"), Kind.COLLECTIVE)) > NUM_INTERRUPTIONS


def record_threads(out: str) -> int:
    """Threads that issue collectives on groups of their own while the run begins and ends, again and again."""
    alone()
    groups, going, counts = [dist.new_group([0]) for _ in range(3)], True, [0] * 3

    def reduce(number: int) -> None:
        while going:
            dist.all_reduce(torch.ones(1), group=groups[number])
            counts[number] += 1

    threads = [threading.Thread(target=reduce, args=(number,)) for number in range(3)]
    with started(f"{out}/0") as run:
        for thread in threads:
            thread.start()
        for _ in range(10):
            time.sleep(0.02)
            run.step()
    going = False
    for thread in threads:
        thread.join()
    return sum(counts)


def test_threads_may_issue_collectives_while_the_run_ends(victims: Victims, tmp_path: Path) -> None:
    ended = victims.run(record_threads, tmp_path / "run")
    assert ended.code == 0, ended.err
    rank = only_rank(tmp_path / "run" / "0")
    threads = [records[records["kind"] == Kind.COLLECTIVE] for records in map(rank.thread, rank.threads)]
    for records in (each for each in threads if len(each)):
        for window in np.unique(records["window"]):
            sequences = records["sequence"][records["window"] == window]
            assert sequences.tolist() == list(range(len(sequences)))
        assert (records["flags"] & Flag.RAISED == 0).all()
    assert 0 < sum(map(len, threads)) <= ended.result


def cut_segments(out: str) -> list[float]:
    """The file under the records becomes empty, again and again, while collectives are recorded and under way."""
    writer.CAPACITY = 100
    alone()
    results = []
    with started(out) as run:
        for number in range(300):
            if number % 30 == 29 and out:
                for path in Path(out).rglob("*.seg"):
                    os.truncate(path, 0)
            tensor = torch.full((1,), float(number))
            work = dist.all_reduce(tensor, async_op=True)
            dist.all_reduce(tensor)
            assert work is not None
            work.wait()
            results.append(tensor.item())
        if run is not None:
            run.step()
    return results


@pytest.mark.skipif(os.geteuid() != 0, reason="modes keep other users from cutting a segment")
def test_a_segment_that_is_cut_costs_records_only(victims: Victims, tmp_path: Path) -> None:
    ended = victims.train(cut_segments, tmp_path / "run")
    assert (ended.code, ended.result) == (0, [float(number) for number in range(300)]), ended.err
    rank = only_rank(tmp_path / "run")
    assert rank.dropped > 0
    assert 0 < len(of_kind(rank, Kind.COLLECTIVE)) < 600


def use_groups_in_forks(out: str) -> list[int]:
    """Groups come and go, and children of the loop communicate and fork a loader's workers."""
    alone()
    codes = []
    with started(out) as run:
        for number in range(60):
            group = dist.new_group([0])
            dist.all_reduce(torch.ones(1), group=group)
            left = dist.all_reduce(torch.ones(1), group=group, async_op=True)
            dist.destroy_process_group(group)
            del group, left
            if number % 20 == 10:
                codes.append(communicate_in_a_child())
        if run is not None:
            run.step()
    return codes


def communicate_in_a_child() -> int:
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    group = dist.new_group([0])  # the threads of the parent's groups are not here
    dist.all_reduce(torch.ones(1), group=group)
    for _ in torch.utils.data.DataLoader(range(8), num_workers=1):  # type: ignore[arg-type, var-annotated]
        dist.all_reduce(torch.ones(1), group=group)
    os._exit(CODE)


def test_groups_that_go_and_children_that_communicate(victims: Victims, tmp_path: Path) -> None:
    ended = victims.train(use_groups_in_forks, tmp_path / "run")
    assert (ended.code, ended.result, ended.err) == (0, [CODE] * 3, "")
    assert len(of_kind(only_rank(tmp_path / "run"), Kind.COLLECTIVE)) == 120


def wait_in_another_run(out: str) -> None:
    """A work of the first run is waited for in the second one, and one of the second after it."""
    alone()
    works = []
    for number in range(2):
        with started(f"{out}-{number}") as run:
            works.append(dist.all_reduce(torch.ones(1), async_op=True))
            if number:
                works[0].wait()  # type: ignore[union-attr]
            if run is not None:
                run.step()
    works[1].wait()  # type: ignore[union-attr]


def test_a_work_that_outlives_its_run_is_no_stall_of_another(victims: Victims, tmp_path: Path) -> None:
    ended = victims.train(wait_in_another_run, tmp_path / "run")
    assert (ended.code, ended.err) == (0, "")
    for number in range(2):
        rank = only_rank(tmp_path / f"run-{number}")
        assert (len(of_kind(rank, Kind.COLLECTIVE)), len(of_kind(rank, Kind.STALL))) == (1, 0)
