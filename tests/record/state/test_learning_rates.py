"""Learning rates that are recorded of optimizers with a model of DDP, in a training of this process on gloo."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import traincope
from traincope import open_run
from traincope.events import BLOCK_STEPS, LEARNING_RATES
from traincope.record.state.learning_rates import is_read, plain_rate

STEPS = 3 * BLOCK_STEPS + 1


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path) -> Iterator[None]:
    """A gloo group of this process only."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def read(out: Path, rate: Any, *, by_ddp: bool = True) -> dict[int, dict[str, Any]]:
    """Step -> details of a training with two groups of parameters. The rate of the first is halved in each step."""
    with traincope.run(out) as run:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2, bias=False))
        called = DistributedDataParallel(model) if by_ddp else model
        groups = [{"params": model[0].parameters(), "lr": rate}, {"params": model[1].parameters(), "lr": 0.25}]
        optimizer = torch.optim.SGD(groups, lr=1.0)
        for _ in range(STEPS):
            called(torch.ones(3, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            optimizer.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"] / 2
            run.step()
    (rank,) = open_run(out).ranks
    (records,) = open_run(out).run.ranks
    events = [record for record in rank.main if rank.name(int(record["name"])) == LEARNING_RATES]
    return {int(event["step"]): dict(records.details[int(event["group"])]) for event in events}


@pytest.mark.parametrize("rate", [1.0, torch.tensor(1.0)], ids=["number", "tensor"])
def test_rates_are_those_of_the_step_that_begins(tmp_path: Path, rate: Any) -> None:
    steps = [BLOCK_STEPS * block for block in (1, 2, 3)]
    common = {"optimizer": 0, "replicas": [0, 0, 1], "parameters": [2, 1]}
    assert read(tmp_path / "run", rate) == {step: {**common, "rates": [2.0**-step, 0.25]} for step in steps}


def test_a_rate_on_a_device_is_not_read() -> None:
    """A tensor of the device `meta` has no value, as one of a GPU has none before the host waits for it."""
    assert plain_rate(torch.tensor(0.5, device="meta")) is None
    assert plain_rate(torch.tensor(0.5)) == plain_rate(0.5) == 0.5


class Seen(TorchFunctionMode):
    """Counts the functions of torch that it sees."""

    count = 0

    def __torch_function__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


class Forbidden(TorchDispatchMode):
    def __torch_dispatch__(self, operator: Any, *_: Any, **__: Any) -> Any:
        raise AssertionError(operator)


def test_modes_of_the_training_see_no_reading() -> None:
    rate = torch.tensor(0.5)
    with Seen() as seen:
        assert plain_rate(rate) == 0.5
    assert seen.count == 0
    with Forbidden():
        assert plain_rate(rate) is None


def test_optimizers_without_ddp_are_not_read(tmp_path: Path) -> None:
    assert read(tmp_path / "run", 1.0, by_ddp=False) == {}


def test_readings_become_rarer() -> None:
    """All of the first 12 blocks, then four up to each power of two."""
    read_blocks = [block for block in range(1000) if is_read(block)]
    assert read_blocks[:18] == [*range(12), 12, 14, 16, 20, 24, 28]
    assert read_blocks[-4:] == [512, 640, 768, 896]
