"""Kernel windows on a GPU that runs behind the host."""

import json
from pathlib import Path

import pytest
import torch

import traincope
from tests.gpu.readers import SPIN, failed_hooks, only_rank
from traincope.record.gpu import windows

SPINS = 3
SPIN_CYCLES = 20_000_000
"""About 10 ms: the host has queued a whole step long before its first kernel is done."""


def test_a_window_contains_exactly_the_kernels_of_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "FIRST", 2)
    with traincope.run(tmp_path / "run", level=3, budget=None) as run:
        for _ in range(5):
            for _ in range(SPINS):
                torch.cuda._sleep(SPIN_CYCLES)
            run.step()
        torch.cuda.synchronize()
    assert failed_hooks(only_rank(tmp_path / "run")) == {}
    (trace,) = (tmp_path / "run").rglob("kernels-step-*.json")
    kernels = [event["name"] for event in json.loads(trace.read_text())["traceEvents"] if event.get("cat") == "kernel"]
    assert sum(SPIN in name for name in kernels) == SPINS
