"""Where steps begin and end when nobody says it: every way that trainings are written."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import traincope
from traincope.events import OPEN, Flag, Kind
from traincope.record.steps import NO_OPTIMIZER_AFTER
from traincope.store import read_run


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))


def backward(trained: nn.Module) -> None:
    trained(torch.ones(2, 4)).sum().backward()


def plain() -> Iterator[None]:
    trained = model()
    optimizer = torch.optim.AdamW(trained.parameters())
    while True:
        backward(trained)
        optimizer.step()
        optimizer.zero_grad()
        yield


def accumulating() -> Iterator[None]:
    trained = model()
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    while True:
        for _ in range(4):
            backward(trained)
        optimizer.step()
        yield


def two_optimizers() -> Iterator[None]:
    generator, critic = model(), model()
    first = torch.optim.SGD(generator.parameters(), lr=0.1)
    second = torch.optim.SGD(critic.parameters(), lr=0.1)
    while True:
        backward(generator)
        backward(critic)
        first.step()
        second.step()
        yield


def zero_1() -> Iterator[None]:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    trained = model()
    optimizer = ZeroRedundancyOptimizer(trained.parameters(), optimizer_class=torch.optim.SGD, lr=0.1)
    while True:
        backward(trained)
        optimizer.step()
        yield


def optimizer_in_backward() -> Iterator[None]:
    trained = model()
    for parameter in trained.parameters():
        optimizer = torch.optim.SGD([parameter], lr=0.1)

        def update(_: nn.Parameter, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad()

        parameter.register_post_accumulate_grad_hook(update)
    while True:
        backward(trained)
        yield


class Lion(torch.optim.Optimizer):
    """An optimizer of the training's own."""

    def __init__(self, parameters: Iterator[nn.Parameter]) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter -= 0.1 * parameter.grad.sign()


def own_class() -> Iterator[None]:
    trained = model()
    optimizer = Lion(trained.parameters())
    while True:
        backward(trained)
        optimizer.step()
        yield


WAYS = (plain, accumulating, two_optimizers, zero_1, optimizer_in_backward, own_class)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("way", WAYS)
def test_one_iteration_is_one_step(tmp_path: Path, way: Callable[[], Iterator[None]]) -> None:
    with traincope.run(tmp_path / "run", throttle=None):
        iterations = way()
        for _ in range(5):
            next(iterations)
    steps = recorded_steps(tmp_path / "run")
    assert steps == [(number, Flag.GUESSED) for number in range(5)]


def recorded_steps(path: Path) -> list[tuple[int, Flag]]:
    (rank,) = read_run(path).ranks
    records = rank.thread("main")[rank.thread("main")["kind"] == Kind.STEP]
    assert (records["end_ns"] != OPEN).all()
    return [(int(step["step"]), Flag(int(step["flags"]))) for step in records]


def test_without_any_optimizer_whole_backward_calls_count_after_a_while(tmp_path: Path) -> None:
    trained = model()
    with traincope.run(tmp_path / "run", throttle=None):
        for _ in range(NO_OPTIMIZER_AFTER + 4):
            backward(trained)
            with torch.no_grad():
                for parameter in trained.parameters():
                    parameter -= 0.1 * parameter.grad
                    parameter.grad = None
    assert recorded_steps(tmp_path / "run") == [(number, Flag.GUESSED) for number in range(5)]


def test_a_step_whose_gradients_overflowed_is_skipped_and_says_so(tmp_path: Path) -> None:
    trained = model()
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with traincope.run(tmp_path / "run", throttle=None):
        for factor in (1.0, float("inf"), 1.0):
            scaler.scale(trained(torch.ones(2, 4)).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    flags = [flag for _, flag in recorded_steps(tmp_path / "run")]
    assert flags == [Flag.GUESSED, Flag.GUESSED | Flag.SKIPPED, Flag.GUESSED]
