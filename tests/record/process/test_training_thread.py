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


def test_later_threads_have_writers_of_their_own(tmp_path: Path) -> None:
    """A GPU's thread of marks begins after the training has moved to a thread."""

    def train_beside_another() -> None:
        train(steps=2)
        other = Thread(target=lambda: traincope.event("other"))
        other.start()
        other.join()
        train(steps=2)

    with traincope.run(tmp_path / "run", budget=None):
        training = Thread(target=train_beside_another)
        training.start()
        training.join()
    (rank,) = read_run(tmp_path / "run").ranks
    names = {thread: [rank.name(int(number)) for number in rank.thread(thread)["name"]] for thread in rank.threads}
    assert "other" not in names["main"]
    assert sum("other" in of_thread for of_thread in names.values()) == 1


def test_an_optimizer_that_creates_its_state_first_does_not_train(tmp_path: Path) -> None:
    """As a resume from a distributed checkpoint does: it steps once on gradients of zero."""

    def resume() -> None:
        model = torch.nn.Linear(4, 1)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        torch.optim.AdamW(model.parameters(), lr=0.0).step()
        train()

    with traincope.run(tmp_path / "run", budget=None):
        training = Thread(target=resume)
        training.start()
        training.join()
    (rank,) = read_run(tmp_path / "run").ranks
    assert (rank.thread("main")["kind"] == Kind.STEP).sum() >= 5


def test_a_thread_that_only_warmed_up_does_not_keep_the_training(tmp_path: Path) -> None:
    def warm_up() -> None:
        x = torch.ones(2, requires_grad=True)
        torch.autograd.grad((x**2).sum(), x)

    with traincope.run(tmp_path / "run", budget=None):
        warming = Thread(target=warm_up)
        warming.start()
        warming.join()
        train()
    (rank,) = read_run(tmp_path / "run").ranks
    main = rank.thread("main")
    assert (main["kind"] == Kind.STEP).sum() == 5
    assert ((main["kind"] == Kind.PHASE) & (main["phase"] == Phase.OPTIMIZER)).sum() == 10


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
def test_a_group_that_is_made_anew_within_a_step_does_not_split_it(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 1)
    with traincope.run(tmp_path / "run", budget=None) as run:
        for number in range(4):
            run.step()
            model(torch.ones(2, 4)).sum().backward()
            if number == 2:
                dist.destroy_process_group()
                dist.init_process_group("gloo", init_method=f"file://{tmp_path}/again", rank=0, world_size=1)
            model(torch.ones(2, 4)).sum().backward()
        run.step()
        assert run.num_steps == 4


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
