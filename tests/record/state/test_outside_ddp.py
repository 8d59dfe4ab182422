"""Parameters that the optimizer trains and DDP does not reduce, in a training of this process on gloo."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import traincope
from traincope import open_run
from traincope.events import OUTSIDE_DDP

BYTES = 4
"""Size of a parameter's element."""


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path) -> Iterator[None]:
    """A gloo group of this process only."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Adapted(nn.Module):
    """A body, frozen or not, a head, and an adapter that comes later."""

    def __init__(self, *, frozen: bool) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 4).requires_grad_(not frozen), nn.Linear(4, 2)
        self.adapter: nn.Module = nn.Identity()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.body(inputs) + self.adapter(inputs))
        return result


def seen(out: Path, change: str, *, trained: bool = True) -> list[dict[str, object]]:
    """Details of the events of a training that changes its model after DDP was made."""
    with traincope.run(out):
        model = Adapted(frozen=change == "unfrozen")
        ignored = ["adapter.weight"] if change == "ignored" else []
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)
        wrapper = DistributedDataParallel(model)
        if change == "unfrozen":
            model.body.requires_grad_(True)
        elif change:
            model.adapter = nn.Linear(4, 4, bias=False)
        optimizer = torch.optim.SGD(wrapper.parameters() if trained else model.head.parameters(), lr=0.1)
        for _ in range(5):
            wrapper(torch.ones(3, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    (rank,) = open_run(out).ranks
    (records,) = open_run(out).run.ranks
    events = [record for record in rank.main if rank.name(int(record["name"])) == OUTSIDE_DDP]
    return [dict(records.details[int(event["group"])]) for event in events]


def test_adapters_and_unfrozen_layers_are_noted_once(tmp_path: Path) -> None:
    head, body = (4 * 2 + 2) * BYTES, (4 * 4 + 4) * BYTES
    adapter = {"parameters": 1, "bytes": 4 * 4 * BYTES, "reduced_bytes": head + body, "first": "adapter.weight"}
    assert seen(tmp_path / "added", "added") == [adapter]
    unfrozen = {"parameters": 2, "bytes": body, "reduced_bytes": head, "first": "body.weight"}
    assert seen(tmp_path / "unfrozen", "unfrozen") == [unfrozen]


def test_what_is_not_trained_or_is_meant_is_not_noted(tmp_path: Path) -> None:
    assert seen(tmp_path / "same", "") == []
    assert seen(tmp_path / "ignored", "ignored") == []
    assert seen(tmp_path / "untrained", "added", trained=False) == []
