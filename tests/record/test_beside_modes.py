"""Somebody's dispatch mode around the whole training: it sees what it saw, nothing changes, FLOPs are right."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import traincope
from traincope.analysis.counted import counted_flops
from traincope.record.torch_private import without_modes

STEPS = 4
ROWS, WIDTH, HIDDEN = 4, 8, 16
FORWARD = 2 * ROWS * (WIDTH * HIDDEN + HIDDEN)
"""Two products: 2 FLOPs an element of (rows, width) x (width, hidden) and (rows, hidden) x (hidden, 1)."""
BACKWARD = 2 * FORWARD - 2 * ROWS * WIDTH * HIDDEN
"""Twice, but that nobody needs the gradient of the first one's input."""


class Listing(TorchDispatchMode):
    """Notes every operator that runs."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def train(directory: Path | None, mode: AbstractContextManager[Any]) -> list[float]:
    """Losses, parameters and the generator's state."""
    torch.manual_seed(3)
    recording = nullcontext() if directory is None else traincope.run(directory, throttle=None)
    with mode, recording:
        model = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.Dropout(0.2), nn.Linear(HIDDEN, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        losses = []
        for _ in range(STEPS):
            loss = model(torch.randn(ROWS, WIDTH)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            traincope.step()
    parameters = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return [*losses, *parameters.tolist(), *map(float, torch.get_rng_state())]


@pytest.mark.parametrize(
    ("make", "seen"),
    [
        (Listing, lambda mode: mode.seen),
        (lambda: FlopCounterMode(display=False), lambda mode: mode.get_flop_counts()),
    ],
    ids=["TorchDispatchMode", "FlopCounterMode"],
)
def test_a_mode_around_an_observed_training_sees_what_it_saw_and_flops_are_those_of_the_formula(
    tmp_path: Path, make: Callable[[], Any], seen: Callable[[Any], object]
) -> None:
    bare_mode, mode = make(), make()
    state = torch.get_rng_state()
    try:
        assert train(tmp_path / "run", mode) == train(None, bare_mode)
    finally:
        torch.set_rng_state(state)
    assert seen(mode) == seen(bare_mode)
    (rank,) = traincope.open_run(tmp_path / "run").ranks
    found = counted_flops(rank)
    assert found is not None
    assert found.executed() == {"float32": FORWARD + BACKWARD}


def test_torch_has_what_keeps_our_trials_from_them() -> None:
    with Listing() as mode:
        with without_modes():
            torch.ones(1)
        torch.zeros(1)
    assert mode.seen == ["aten.zeros.default"]
