"""A training in a thread of its own, and the end of its default process group: what Ray's workers do."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest
import torch
import torch.distributed as dist

import traincope
from traincope.analysis import analyze
from traincope.events import GROUP_DESTROYED, NO_STEP, Kind, Phase
from traincope.store import read_run
from traincope.store.segments.segments import recorder_events
from traincope.timeline import open_run


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def train(steps: int = 5) -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        traincope.event("updated")


def in_thread() -> None:
    training = Thread(target=train)
    training.start()
    training.join()


def test_a_thread_that_trains_alone_is_the_training_thread(tmp_path: Path) -> None:
    """Its first forward comes before the first sign that it trains. The thread that began the run writes elsewhere."""
    with traincope.run(tmp_path / "run", budget=None):
        traincope.event("before")
        in_thread()
        traincope.event("after")
    (rank,) = read_run(tmp_path / "run").ranks
    main = rank.thread("main")
    numbers = main["step"][(main["kind"] == Kind.PHASE) & (main["phase"] == Phase.FORWARD)]
    assert numbers.tolist() == [1, 2, 3, 4]
    assert (main["kind"] == Kind.STEP).sum() == 5
    assert main["step"][main["kind"] == Kind.EVENT].tolist() == [NO_STEP, 0, 1, 2, 3, 4]
    assert (rank.thread("thread-1")["kind"] == Kind.EVENT).sum() == 1
    assert not [fault for fault in analyze(open_run(tmp_path / "run")).faults if fault.is_fault]


def test_a_thread_next_to_a_training_records_no_steps(tmp_path: Path) -> None:
    with traincope.run(tmp_path / "run", budget=None):
        train(steps=3)
        in_thread()
    (rank,) = read_run(tmp_path / "run").ranks
    assert (rank.thread("main")["kind"] == Kind.STEP).sum() == 3


def ends_of_group(path: Path) -> int:
    (rank,) = read_run(path).ranks
    events = recorder_events(rank.thread("main"))
    return sum(rank.name(int(number)) == GROUP_DESTROYED for number in events["name"])


@pytest.mark.usefixtures("alone")
def test_the_end_of_the_default_group_ends_the_last_step(tmp_path: Path) -> None:
    with traincope.run(tmp_path / "run", budget=None) as run:
        train(steps=3)
        dist.destroy_process_group()
        assert run.num_steps == 3
    assert ends_of_group(tmp_path / "run") == 1


@pytest.mark.usefixtures("alone")
def test_a_group_of_some_ranks_or_an_exception_on_its_way_is_no_end(tmp_path: Path) -> None:
    with traincope.run(tmp_path / "run", budget=None):
        dist.destroy_process_group(dist.new_group([0]))
        with suppress(ValueError):
            try:
                raise ValueError
            finally:
                dist.destroy_process_group()
    assert ends_of_group(tmp_path / "run") == 0
