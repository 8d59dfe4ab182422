"""What the recorder's kernel windows hold is in the report of the run: on a CPU, torch's operators."""

from pathlib import Path

import pytest
import torch

import traincope
from traincope.record import windows
from traincope.report import to_document

STEPS, LAYERS = 7, 3


def test_traced_steps_of_a_real_training_are_operators_by_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each of two steps a product forward and two backward a layer; the first one's input needs no gradient."""
    monkeypatch.setattr(windows, "FIRST", 2)
    monkeypatch.setattr(windows, "EVERY", 4)
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(LAYERS)))
    with traincope.run(tmp_path / "run", level=3, throttle=None) as run:
        run.describe(peak_flops=1e9)
        for _ in range(STEPS):
            model(torch.ones(2, 8)).sum().backward()
            run.step()
    document = to_document(traincope.analyze(traincope.open_run(tmp_path / "run")))
    found = document["kernels"]
    assert found is not None
    assert (found["source"], found["ranks"], found["steps"], found["traces"]) == ("host", [0], [2, 4], 2)
    gemm = next(one for one in found["classes"] if one["kind"] == "gemm")
    products = 2 * (LAYERS + 2 * LAYERS - 1)
    assert gemm["count"] == products + 2 * LAYERS  # and aten::linear around each
    assert gemm["rated_ns"] == gemm["total_ns"]
    assert gemm["ideal_ns"] == pytest.approx(products * 2 * 2 * 8 * 8)
    assert found["overlap_slowdown_ns"] is None
    assert document["gpu_partition"] is None
    assert document["recorder"]["problems"] == []
