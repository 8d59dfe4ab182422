"""torch's flight recorder as a file: what is read of it, and what a real process writes when asked."""

import json
import os
import signal
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import traincope
from tests.distributed.ranks.pool import Pool
from tests.live.processes import until
from tests.live.recorded import rank_of
from traincope.live.node.noticing.looking import Subject, look_at_ranks
from traincope.store.job.bell import ring
from traincope.store.job.flight import Flight, FlightEntry, read_flight
from traincope.store.job.manifests import read_rank_info
from traincope.store.layout import BELL_FILE, FLIGHT_FILE, RANK_FILE

ENTRY = {
    "process_group": ["0", "default_pg"],
    "collective_seq_id": 12,
    "profiling_name": "gloo:all_reduce",
    "input_dtypes": ["Float"],
    "input_sizes": [[4, 3]],
    "is_p2p": False,
    "retired": True,
    "state": "scheduled",
    "time_created_ns": 99,
}


def written(directory: Path, *entries: object) -> Path:
    text = json.dumps({"at_ns": 5, "groups": {"0": [0, 1]}, "trace": {"entries": entries}})
    (directory / FLIGHT_FILE).write_text(text)
    return directory


def test_entries_are_read_and_messages_are_left_out(tmp_path: Path) -> None:
    directory = written(tmp_path, ENTRY, {**ENTRY, "is_p2p": True}, {**ENTRY, "retired": False})
    first = FlightEntry(
        group="0",
        sequence=12,
        operation="all_reduce",
        dtype="Float",
        num_elements=12,
        complete=True,
        created_wall_ns=99,
    )
    flight = read_flight(directory / FLIGHT_FILE)
    assert isinstance(flight, Flight)
    assert (flight.at_ns, flight.groups, flight.entries[0]) == (5, {"0": (0, 1)}, first)
    assert [entry.complete for entry in flight.entries] == [True, False]


def test_members_that_an_entry_lacks_are_unknown(tmp_path: Path) -> None:
    lacks = {**ENTRY, "frames": None, "input_dtypes": None, "input_sizes": None}
    flight = read_flight(written(tmp_path, lacks, {**ENTRY, "input_sizes": [None]}) / FLIGHT_FILE)
    assert flight is not None
    assert [(entry.num_elements, entry.operation) for entry in flight.entries] == [(None, "all_reduce")] * 2


def test_messages_that_are_not_complete_are_named(tmp_path: Path) -> None:
    message = {**ENTRY, "is_p2p": True, "retired": False}
    sent, received = ({**message, "profiling_name": f"nccl:{name}"} for name in ("send 0->1", "recv 0<-1"))
    flight = read_flight(written(tmp_path, sent, sent, {**received, "retired": True}) / FLIGHT_FILE)
    assert flight is not None
    assert flight.open_messages == ("send 0->1",)


@pytest.mark.parametrize(
    "entry",
    [
        *({}, [], 3, {**ENTRY, "process_group": []}),
        *({**ENTRY, "collective_seq_id": wrong} for wrong in ("x", 2**80)),
        *({**ENTRY, name: 2**80} for name in ("time_created_ns", "timeout_ms")),
    ],
)
def test_a_damaged_file_is_no_evidence(tmp_path: Path, entry: object) -> None:
    assert read_flight(written(tmp_path, entry) / FLIGHT_FILE) is None
    (tmp_path / FLIGHT_FILE).write_text('{"at_ns": 5, "trace": {"entr')
    assert read_flight(tmp_path / FLIGHT_FILE) is None
    (tmp_path / FLIGHT_FILE).unlink()
    assert read_flight(tmp_path / FLIGHT_FILE) is None


def train_and_answer(out: str, level: int) -> tuple[int, int]:
    """Some collectives at a level; rank 0 asks both ranks. Returns the last count in the group, and before the ask."""
    group = dist.new_group()
    for member in (0, 1):
        dist.new_group([member])  # of one of the two, this process is no member
    directories = [rank_of(Path(out), rank) for rank in (0, 1)]
    with traincope.run(out, level=level) as run:
        until(lambda: run.step() or (directories[dist.get_rank()] / RANK_FILE).exists(), "its place")
        for _ in range(3):
            dist.all_reduce(torch.ones(8), group=group)
        count = group._get_sequence_number_for_group()
        if dist.get_rank() == 0:
            subjects = [Subject(directory=each, info=read_rank_info(each)) for each in directories]
            look_at_ranks(subjects, with_stacks=True)
        dist.barrier()
    flight = read_flight(rank_of(Path(out), dist.get_rank()) / FLIGHT_FILE)
    assert flight is not None
    entries = [entry for entry in flight.entries if entry.group == group.group_name]
    assert flight.groups[group.group_name] == (0, 1)
    return entries[-1].sequence, count


@pytest.mark.parametrize("level", [0, 1])
def test_real_ranks_write_their_collectives_when_asked(two_ranks: Pool, tmp_path: Path, level: int) -> None:
    for sequence, count in two_ranks.run(train_and_answer, str(tmp_path / f"run-{level}"), level):
        assert sequence == count >= 3


def fail_on_rank_1(out: str) -> tuple[bool, int]:
    """Rank 1 raises after three collectives. Returns whether its run left the file, and how many entries it has."""
    group = dist.new_group()
    try:
        with traincope.run(out, level=0) as run:
            run.step()
            for _ in range(3):
                dist.all_reduce(torch.ones(8), group=group)
            if dist.get_rank() == 1:
                raise ValueError("on rank 1")
    except ValueError:
        pass
    dist.barrier()
    flight = read_flight(rank_of(Path(out), dist.get_rank()) / FLIGHT_FILE)
    return flight is not None, sum(entry.group == group.group_name for entry in flight.entries) if flight else 0


def test_a_run_that_ends_by_an_exception_leaves_its_collectives(two_ranks: Pool, tmp_path: Path) -> None:
    """A peer aborts inside of gloo where sizes differ, and the job ends before an agent asks."""
    assert two_ranks.run(fail_on_rank_1, str(tmp_path / "run")) == [(False, 0), (True, 3)]


def end_and_leave_nothing(out: str) -> tuple[list[str], bool]:
    """Returns the threads of ours after the run, and whether its bell is gone."""
    with traincope.run(out) as run:
        run.step()
    gone = not (rank_of(Path(out), dist.get_rank()) / BELL_FILE).exists()
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("traincope")], gone


def test_the_thread_and_its_bell_end_with_the_run(two_ranks: Pool, tmp_path: Path) -> None:
    assert two_ranks.run(end_and_leave_nothing, str(tmp_path / "run")) == [([], True)] * 2


def fork_and_go_on(out: str) -> tuple[str, str]:
    """A forked child lives longer than the run, as a persistent data worker does. Returns the probe's state in the run
    and in the next one of this process.
    """
    with traincope.run(f"{out}-1") as run:
        dist.barrier()
        run.step()
        child = os.fork()
        if child == 0:
            signal.pause()
        directory = rank_of(Path(f"{out}-1"), dist.get_rank())
        ring(directory / BELL_FILE)
        until(lambda: (directory / FLIGHT_FILE).exists(), "the answer")
    with traincope.run(f"{out}-2") as run:
        dist.barrier()  # a rank whose run ends before rank 0 begins its own has an attempt of its own
        run.step()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    states = [read_rank_info(rank_of(Path(f"{out}-{n}"), dist.get_rank())).probes["flight_recorder"] for n in (1, 2)]
    return states[0], states[1]


def test_a_forked_child_does_not_end_the_answers(two_ranks: Pool, tmp_path: Path) -> None:
    assert two_ranks.run(fork_and_go_on, str(tmp_path / "run")) == [("on", "on")] * 2
