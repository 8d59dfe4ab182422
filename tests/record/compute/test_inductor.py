"""Training compiled to machine code: bit-identical with and without a recorder, with the same graphs."""

import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch._inductor.config
from torch import nn

import traincope
from traincope.analysis.efficiency.counted_flops import counted_flops

STEPS = 3
QUICK = {"cpp_cache_precompile_headers": False, "cpp.simdlen": 1, "compile_threads": 1}
"""Real machine code, but without precompiled headers and without a trial for the widest vectors."""

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile's inductor needs a C++ compiler, g++"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),  # inductor's own
]


def train(directory: Path | None) -> tuple[list[float], int]:
    """Losses, parameters, the generator's state, and the number of graphs."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(3)
    recording = nullcontext() if directory is None else traincope.run(directory, level=2, budget=None)
    with recording, torch._inductor.config.patch(QUICK):
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


@pytest.mark.sweep
def test_a_training_compiled_by_inductor_is_unchanged_and_its_flops_are_those_of_its_graph(tmp_path: Path) -> None:
    """Four rows: two products forward, and the gradients of two weights and one input."""
    state = torch.get_rng_state()
    try:
        observed = train(tmp_path / "run")
        assert observed == train(None)
    finally:
        torch.set_rng_state(state)
        torch._dynamo.reset()
    assert observed[1] == 1
    (rank,) = traincope.open_run(tmp_path / "run").ranks
    flop_counts = counted_flops(rank)
    assert flop_counts is not None
    assert flop_counts.model(causal_half=False) == {"float32": 2 * 4 * (3 * 16 * 1 + 2 * 8 * 16)}
