"""A dispatch mode around the whole training sees the same calls, nothing changes, and FLOPs are right."""

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
from traincope.analysis.efficiency.counted_flops import counted_flops
from traincope.record.instrumentation.torch_private import without_modes

STEPS = 4
ROWS, WIDTH, HIDDEN = 4, 8, 16
FORWARD = 2 * ROWS * (WIDTH * HIDDEN + HIDDEN)
"""Two products: 2 FLOPs per element of (rows, width) x (width, hidden) and (rows, hidden) x (hidden, 1)."""
BACKWARD = 2 * FORWARD - 2 * ROWS * WIDTH * HIDDEN
"""Twice the forward, without the gradient of the first product's input."""


class Listing(TorchDispatchMode):
    """A mode that notes every operator that runs."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators.append(str(func))
        return func(*args, **(kwargs or {}))


def train(directory: Path | None, mode: AbstractContextManager[Any]) -> list[float]:
    """Losses, parameters and the generator's state."""
    torch.manual_seed(3)
    recording = nullcontext() if directory is None else traincope.run(directory, budget=None)
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
    ("make", "operators"),
    [
        (Listing, lambda mode: mode.operators),
        (lambda: FlopCounterMode(display=False), lambda mode: mode.get_flop_counts()),
    ],
    ids=["TorchDispatchMode", "FlopCounterMode"],
)
def test_a_dispatch_mode_sees_the_same_calls_and_flops_match_the_formula(
    tmp_path: Path, make: Callable[[], Any], operators: Callable[[Any], object]
) -> None:
    bare_mode, mode = make(), make()
    state = torch.get_rng_state()
    try:
        assert train(tmp_path / "run", mode) == train(None, bare_mode)
    finally:
        torch.set_rng_state(state)
    assert operators(mode) == operators(bare_mode)
    (rank,) = traincope.open_run(tmp_path / "run").ranks
    flop_counts = counted_flops(rank)
    assert flop_counts is not None
    assert flop_counts.executed() == {"float32": FORWARD + BACKWARD}


def test_this_torch_can_disable_dispatch_modes() -> None:
    with Listing() as mode:
        with without_modes():
            torch.ones(1)
        torch.zeros(1)
    assert mode.operators == ["aten.zeros.default"]
