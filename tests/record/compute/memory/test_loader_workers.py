"""Memory and CPU time of the workers of DataLoaders."""

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from time import process_time_ns, sleep

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import traincope
from traincope.record.compute.memory import loader_workers
from traincope.record.compute.memory.loader_workers import TICK_NS, LoaderWorkers, WorkerUse, use_of


class Keeps(IterableDataset[torch.Tensor]):
    """A dataset that keeps 4 MiB of each sample."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        kept = []
        while True:
            kept.append(torch.ones(1 << 20))
            yield kept[-1][:4].clone()


class Pool:
    """Workers of an iterator."""

    class Worker:
        def __init__(self, pid: int | None) -> None:
            self.pid = pid

    def __init__(self, *pids: int | None) -> None:
        self._workers = [self.Worker(pid) for pid in pids]


def test_workers_that_run_are_summed_and_others_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    own, parent = use_of(os.getpid()), use_of(os.getppid())
    assert own is not None
    assert parent is not None
    assert own.resident_bytes > 1 << 24
    assert 0 < own.cpu_ns <= process_time_ns() + 2 * TICK_NS
    assert LoaderWorkers([]).read() is None
    ended = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(ended, 0)
    reader = LoaderWorkers([Pool(os.getpid(), ended, None), Pool(os.getpid(), os.getppid())])
    summed = reader.read()
    assert summed is not None
    assert summed.resident_bytes == pytest.approx(own.resident_bytes + parent.resident_bytes, rel=0.2)
    assert summed.cpu_ns >= own.cpu_ns + parent.cpu_ns
    monkeypatch.setattr(loader_workers, "monotonic_ns", lambda: 0)
    assert reader.read() is None  # the next reading is not due


def test_the_time_of_workers_that_ended_stays_in_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    used = {1: WorkerUse(resident_bytes=1, cpu_ns=30), 2: WorkerUse(resident_bytes=1, cpu_ns=50)}
    monkeypatch.setattr(loader_workers, "use_of", used.get)
    monkeypatch.setattr(loader_workers, "EARLY_COST_SHARE", 0)
    pool = Pool(1, 2)
    reader = LoaderWorkers([pool])
    assert reader.read() == WorkerUse(resident_bytes=2, cpu_ns=80)
    del used[1]
    used[2] = WorkerUse(resident_bytes=1, cpu_ns=60)
    assert reader.read() == WorkerUse(resident_bytes=1, cpu_ns=90)
    used[1] = WorkerUse(resident_bytes=1, cpu_ns=20)
    used[2] = WorkerUse(resident_bytes=1, cpu_ns=5)  # a later process with the same number
    assert reader.read() == WorkerUse(resident_bytes=2, cpu_ns=30 + 60 + 20 + 5)


def test_a_reading_that_waits_for_a_core_delays_the_next_one_by_its_cpu_time_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def waits(pid: int) -> WorkerUse:
        sleep(1.0)
        return WorkerUse(resident_bytes=pid, cpu_ns=0)

    monkeypatch.setattr(loader_workers, "use_of", waits)
    monkeypatch.setattr(loader_workers, "EARLY_COST_SHARE", 1)
    reader = LoaderWorkers([Pool(1)])
    assert reader.read() is not None
    sleep(0.2)  # its CPU time, of some microseconds, has passed; the second that it waited has not
    assert reader.read() is not None


def test_the_first_readings_come_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    monkeypatch.setattr(loader_workers, "monotonic_ns", lambda: now[0])
    monkeypatch.setattr(loader_workers, "thread_time_ns", iter(range(10_000)).__next__)  # 1 ns each
    reader = LoaderWorkers([Pool(os.getpid())])
    due = []
    for at in range(0, 10_000, 50):
        now[0] = at
        if reader.read() is not None:
            due.append(at)
    early = loader_workers.EARLY_READINGS * 50
    assert due == [*range(0, early + 1, 50), *range(early + 500, 10_000, 500)]


def test_what_a_worker_keeps_is_seen_in_a_run(tmp_path: Path) -> None:
    loader = DataLoader(Keeps(), batch_size=1, num_workers=1)
    with traincope.run(tmp_path / "run", agent=False) as run:
        model = torch.nn.Linear(4, 4)
        for inputs in islice(loader, 40):
            model(inputs).sum().backward()
            run.step()
    uses = {use.measure: use for use in traincope.analyze(traincope.open_run(tmp_path / "run")).memory}
    assert uses["loader workers"].peak_bytes > uses["resident"].peak_bytes - uses["resident"].peak_bytes // 2
