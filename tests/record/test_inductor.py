"""Training compiled to machine code, observed and not: the same to the bit, and the same graphs."""

import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn

import traincope
from traincope.store import read_run

STEPS = 3

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile's inductor needs a C++ compiler, g++"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),  # inductor's own
]


def train(directory: Path | None) -> tuple[list[float], int]:
    """Losses, parameters and the generator's state; how many graphs were made."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(3)
    recording = nullcontext() if directory is None else traincope.run(directory, level=2, throttle=None)
    with recording:
        model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.GELU(), nn.Linear(16, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        compiled, losses = torch.compile(model), []
        for _ in range(STEPS):
            loss = compiled(torch.randn(4, 8)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            traincope.step()
    parameters = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    bits = [*losses, *parameters.tolist(), *map(float, torch.get_rng_state())]
    return bits, torch._dynamo.utils.counters["stats"]["unique_graphs"]


def test_a_training_that_inductor_compiles_is_the_same_and_its_flops_are_not_guessed(tmp_path: Path) -> None:
    state = torch.get_rng_state()
    try:
        observed = train(tmp_path / "run")
        assert observed == train(None)
    finally:
        torch.set_rng_state(state)
        torch._dynamo.reset()
    assert observed[1] == 1
    (rank,) = read_run(tmp_path / "run").ranks
    assert "compile" in rank.info.probes["flops"]
