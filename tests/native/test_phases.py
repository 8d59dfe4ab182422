"""Phases that native code opens are those that the Python writer opens: the same bytes, in every state of a run."""

import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

import traincope
from tests.native.library import needs_library, using
from tests.record.instrumentation.test_interrupted_hooks import Interruption, Preempted
from tests.record.instrumentation.test_interrupted_hooks import train as train_once
from traincope.events import OPEN, Kind, Phase
from traincope.record.segments.writer import CAPACITY
from traincope.store import RankRecords, read_run

pytestmark = needs_library

UNTIMED = ["value", "step", "name", "group", "sequence", "peer", "tag", "window", "flags", "phase", "kind"]
STRIDE = 9


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield
    dist.destroy_process_group()


@contextmanager
def started(out: Path, *, native: bool = True) -> Iterator[Any]:
    """A run whose training thread has recorded a collective: native code opens its phases from then on."""
    with using(native=native), traincope.run(out, budget=None, agent=False) as run:
        dist.all_reduce(torch.ones(1))
        recorder = run._recorder
        assert recorder is not None
        assert (recorder.begin_phase_natively is not None) == native
        yield recorder


def only_rank(out: Path) -> RankRecords:
    (rank,) = read_run(out).ranks
    return rank


def of_phase(rank: RankRecords, thread: str, phase: Phase) -> Any:
    records = rank.thread(thread)
    return records[(records["kind"] == Kind.PHASE) & (records["phase"] == phase)]


def train() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader: Any = torch.utils.data.DataLoader([torch.ones(2)] * 6, batch_size=2)  # type: ignore[arg-type]
    for _ in range(2):
        for batch in loader:
            model(batch).sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            model(torch.ones(2))
        model.train()


def test_both_recorders_write_the_same_fields(tmp_path: Path) -> None:
    """All but the times of forward, backward, optimizer, evaluation and data, in the same order."""
    fields = []
    for native in (True, False):
        out = tmp_path / str(native)
        with started(out, native=native):
            train()
        rank = only_rank(out)
        records = rank.thread("main")
        phases = records[(records["kind"] == Kind.PHASE) & (records["phase"] != Phase.GC)]
        assert (phases["end_ns"] != OPEN).all()
        assert (phases["end_ns"] >= phases["start_ns"]).all()
        named = [rank.name(int(name)) for name in phases["name"]]
        fields.append([(*record, name) for record, name in zip(phases[UNTIMED].tolist(), named, strict=True)])
        assert {record["phase"] for record in phases} == {
            *(Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.EVALUATION, Phase.DATA_WAIT),
        }
    without_numbers = [[(*record[:2], *record[3:]) for record in of_run] for of_run in fields]
    assert without_numbers[0] == without_numbers[1]


def counted(recorder: Any) -> Counter[tuple[int, bool]]:
    """Count from now on, by thread, the phases that native code opens, and those that it leaves to the writer."""
    natively, opened = recorder.begin_phase_natively, Counter[tuple[int, bool]]()

    def begin_phase(*arguments: Any) -> Any:
        slot = natively(*arguments)
        opened[threading.get_ident(), bool(slot)] += 1
        return slot

    recorder.begin_phase_natively = begin_phase
    return opened


def test_phases_go_on_in_the_next_segment(tmp_path: Path) -> None:
    """Native code has no room at the end of each segment: the writer opens that record, and native code the next."""
    number, model = 2 * CAPACITY + 100, nn.Identity()
    with started(tmp_path) as recorder:
        opened = counted(recorder)
        for _ in range(number):
            model(None)
    main = threading.get_ident()
    rank = only_rank(tmp_path)
    forward = of_phase(rank, "main", Phase.FORWARD)
    assert len(forward) == number == opened.total()
    assert 1 <= opened[main, False] <= 3
    assert (forward["end_ns"] >= forward["start_ns"]).all()
    assert (np.diff(forward["start_ns"]) >= 0).all()
    assert rank.info.recorder["dropped"] == 0


def test_each_thread_writes_its_own_phases(tmp_path: Path) -> None:
    """Two threads with collectives of their own, and one without: native code does not know its place."""
    number, groups = 5_000, [dist.new_group() for _ in range(2)]
    together = threading.Barrier(3)

    def call(group: Any) -> None:
        model = nn.Identity()
        if group is not None:
            dist.all_reduce(torch.ones(1), group=group)
        together.wait()
        for _ in range(number):
            model(None)
        together.wait()

    with started(tmp_path) as recorder:
        opened = counted(recorder)
        threads = [threading.Thread(target=call, args=(group,)) for group in (*groups, None)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    by_writer = [opened[thread.ident or 0, False] for thread in threads]
    assert max(by_writer[:2]) <= 3
    assert by_writer[2] == number
    rank = only_rank(tmp_path)
    counts = [len(of_phase(rank, f"thread-{number}", Phase.FORWARD)) for number in (1, 2, 3)]
    assert counts == [number] * 3
    assert rank.info.recorder["dropped"] == 0


def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    model = nn.Identity()
    with started(tmp_path) as recorder:
        natively = recorder.begin_phase_natively
        model(None)
        child = os.fork()
        if child == 0:
            model(None)
            os._exit(bool(natively(Phase.FORWARD, 1, {}, (1, 1))))
        _, status = os.waitpid(child, 0)
        model(None)
    assert os.waitstatus_to_exitcode(status) == 0
    assert len(of_phase(only_rank(tmp_path), "main", Phase.FORWARD)) == 2


def test_nothing_is_opened_after_a_run(tmp_path: Path) -> None:
    with started(tmp_path) as recorder:
        natively = recorder.begin_phase_natively
        opened: dict[tuple[int, int], Any] = {}
        assert natively(Phase.FORWARD, 1, opened, (1, 1)) is opened[1, 1]
        with pytest.raises(TypeError):
            natively(Phase.FORWARD, "a name", opened, (2, 2))
        assert not natively()
    assert not natively(Phase.FORWARD, 1, opened, (2, 2))
    assert list(opened) == [(1, 1)]


def test_a_slot_keeps_its_segment_mapped(tmp_path: Path) -> None:
    """It can be closed after the run, as each of Python's."""
    with started(tmp_path) as recorder:
        opened: dict[tuple[int, int], Any] = {}
        words, index = recorder.begin_phase_natively(Phase.FORWARD, 1, opened, (1, 1))
    words[index] = words[index - 1] + 5
    (forward,) = of_phase(only_rank(tmp_path), "main", Phase.FORWARD)
    assert forward["end_ns"] - forward["start_ns"] == 5


def test_the_rest_of_a_run_is_recorded_after_interruptions(tmp_path: Path) -> None:
    """An exception of the training may come right after native code has opened a record."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    arrived, place = 0, 0
    with started(tmp_path):
        for _ in range(3):
            train_once(model, optimizer)
        while arrived == place // STRIDE:
            place += STRIDE
            sys.settrace(Interruption(place))
            try:
                train_once(model, optimizer)
            except Preempted:
                arrived += 1
            finally:
                sys.settrace(None)
                torch.set_grad_enabled(True)
        for _ in range(3):
            train_once(model, optimizer)
    assert arrived > 5
    records = only_rank(tmp_path).thread("main")
    phases = np.sort(records[records["kind"] == Kind.PHASE], order="start_ns")
    assert not (phases["end_ns"] == OPEN).any()
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        assert len(set(phases[phases["phase"] == phase][-3:]["step"])) == 3
