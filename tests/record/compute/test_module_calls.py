"""Calls of modules keep torch's stack: its depth, and what torch's profiler finds on it."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import traincope

LIMIT = 450
"""Frames for the nest. At four or five frames per module it is deeper than what the recorder counts FLOPs in."""

PROFILED = """
import sys, torch, traincope
from torch.profiler import ProfilerActivity, profile

model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train():
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

def profiled():
    return profile(activities=[ProfilerActivity.CPU], with_stack=True)

def modules(profiler):
    return sum(event.name.startswith("nn.Module") for event in profiler.events())

with traincope.run(sys.argv[1] + "/inside", level=2), profiled() as inside:
    before = set(sys.modules)
    train()
    late = {name for name in set(sys.modules) - before if name.startswith("torch.")}
with profiled() as after:
    train()
with profiled() as around, traincope.run(sys.argv[1] + "/around", level=0):
    train()
print(modules(inside), modules(after), modules(around), late)
"""


def test_the_profiler_sees_modules_inside_after_and_around_a_run(tmp_path: Path) -> None:
    """Three steps of four modules each. It looks for torch's function once per process: here first inside a run. No
    module of torch is imported while it profiles: the profiler lists its code, which is gone after that.
    """
    command = [sys.executable, "-c", PROFILED, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (result.returncode, result.stdout) == (0, "12 12 12 set()\n"), result.stderr


class Nest(nn.Module):
    """Modules inside each other."""

    def __init__(self, depth: int, *, hooked: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))
        self.inner = Nest(depth - 1, hooked=hooked) if depth else nn.Linear(4, 4)
        if hooked:
            self.register_forward_hook(lambda *_: None)

    def forward(self, value: torch.Tensor) -> Any:
        return self.inner(value @ self.weight)


def deepest(*, hooked: bool) -> int:
    """Return the depth of the deepest nest that Python's stack takes."""
    possible, impossible = 0, LIMIT // 3
    while impossible - possible > 1:
        depth = (possible + impossible) // 2
        if is_possible(Nest(depth, hooked=hooked)):
            possible = depth
        else:
            impossible = depth
    return possible


def is_possible(model: nn.Module) -> bool:
    frame, depth, limit = sys._getframe(), 0, sys.getrecursionlimit()
    while frame.f_back is not None:
        frame, depth = frame.f_back, depth + 1
    sys.setrecursionlimit(depth + LIMIT)
    try:
        model(torch.ones(2, 4))
    except RecursionError:
        return False
    finally:
        sys.setrecursionlimit(limit)
    return True


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("hooked", [False, True], ids=["plain", "hooked"])
def test_modules_can_be_nested_as_deep_as_without_a_run(tmp_path: Path, level: int, hooked: bool) -> None:
    """Also in step 1, whose FLOPs are counted, and as blocks."""
    model, bare = nn.Linear(4, 4), deepest(hooked=hooked)
    assert bare > 64
    with traincope.run(tmp_path / "run", level=level) as run:
        for _ in range(2):
            run.step()
            model(torch.ones(2, 4)).sum().backward()
            assert deepest(hooked=hooked) == bare


class Answering(dict[str, Any]):
    """A batch, or an output, that makes what it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.setdefault(name, Answering())


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))

    def forward(self, batch: Answering) -> Answering:
        return Answering(x=dict.get(batch, "x") @ self.weight)


class TwoBlocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, batch: Answering) -> list[Answering]:
        return [block(batch) for block in self.blocks]


def test_batches_and_outputs_that_are_no_tensors_are_asked_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also not in the second step, whose FLOPs are counted."""
    model, batch, seen = TwoBlocks(), Answering(x=torch.ones(2, 4)), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with traincope.run(tmp_path / "run", level=2, trace_non_finite=True):
        for _ in range(4):
            outputs = model(batch)
            torch.cat([dict.get(output, "x") for output in outputs]).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            seen += [list(each) for each in (batch, *outputs)]
    assert seen == [["x"]] * 12
    assert caplog.text == ""
