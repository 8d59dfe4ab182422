"""Memory of the workers of DataLoaders."""

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import traincope
from traincope.record.compute.memory import loader_workers
from traincope.record.compute.memory.loader_workers import LoaderWorkers, resident_bytes


class Keeps(IterableDataset[torch.Tensor]):
    """A dataset that keeps 4 MiB of each sample."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        kept = []
        while True:
            kept.append(torch.ones(1 << 20))
            yield kept[-1][:4].clone()


class Pool:
    """Workers of an iterator: this process, and two that have ended or not begun."""

    class Worker:
        def __init__(self, pid: int | None) -> None:
            self.pid = pid

    def __init__(self) -> None:
        ended = os.posix_spawn("/bin/true", ["true"], {})
        os.waitpid(ended, 0)
        self._workers = [self.Worker(os.getpid()), self.Worker(ended), self.Worker(None)]


def test_workers_that_run_are_summed_and_others_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    own = resident_bytes(os.getpid())
    assert own is not None
    assert own > 1 << 24
    assert LoaderWorkers([]).read() is None
    reader = LoaderWorkers([Pool(), Pool()])
    summed = reader.read()
    assert summed is not None
    assert 1.5 * own < summed < 2.5 * own
    monkeypatch.setattr(loader_workers, "monotonic_ns", lambda: 0)
    assert reader.read() is None  # the next reading is not due


def test_what_a_worker_keeps_is_seen_in_a_run(tmp_path: Path) -> None:
    loader = DataLoader(Keeps(), batch_size=1, num_workers=1)
    with traincope.run(tmp_path / "run", agent=False) as run:
        model = torch.nn.Linear(4, 4)
        for inputs in islice(loader, 40):
            model(inputs).sum().backward()
            run.step()
    uses = {use.measure: use for use in traincope.analyze(traincope.open_run(tmp_path / "run")).memory}
    assert uses["loader workers"].peak_bytes > uses["resident"].peak_bytes - uses["resident"].peak_bytes // 2
