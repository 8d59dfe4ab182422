"""Memory of a training that is recorded: little more than without the recorder, and flat."""

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import traincope
from tests.faults.victims import victims as victims_module
from tests.faults.victims.trainings import join_a_group
from tests.faults.victims.victims import Victims
from traincope.record.compute.memory.totals import process_memory

BEYOND_BARE_BYTES = 30 << 20
"""The budget of a rank's memory (docs/develop/overhead.md)."""
FLAT_BYTES = 2 << 20
"""At most so much more after the second half of the steps: 200 bytes per step of 10,000 in all."""
WAITED, DROPPED = 3, 1
"""Collectives of a step that are waited for, and that nothing waits for."""


def sizes(out: str, steps: int) -> list[int]:
    """Train. Returns the resident memory at the start, after half of the steps and at the end, bytes."""
    join_a_group()
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1))
    optimizer, batch = torch.optim.AdamW(model.parameters()), torch.ones(8, 64)
    sizes = [process_memory()[0]]
    with traincope.run(out, budget=None) if out else nullcontext():
        for _ in range(2):
            for _ in range(steps // 2):
                loss = model(batch).square().mean()
                loss.backward()
                for _ in range(WAITED):
                    dist.all_reduce(torch.ones(64))
                for _ in range(DROPPED):
                    dist.all_reduce(torch.ones(64), async_op=True)
                optimizer.step()
                optimizer.zero_grad()
                traincope.step()
            sizes.append(process_memory()[0])
    return sizes


@pytest.mark.parametrize("steps", [400, pytest.param(10_000, marks=pytest.mark.sweep)])
def test_a_rank_takes_little_memory_and_it_stays_flat(
    victims: Victims, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    monkeypatch.setattr(victims_module, "TIMEOUT_SECONDS", 1_800.0)
    bare, recorded = victims.train(sizes, "", steps).result, victims.train(sizes, tmp_path / "run", steps).result

    assert (recorded[-1] - recorded[0]) - (bare[-1] - bare[0]) < BEYOND_BARE_BYTES
    assert (recorded[2] - recorded[1]) - max(bare[2] - bare[1], 0) < FLAT_BYTES
