"""Kernel windows in the report of a run: on a CPU they show torch's operators."""

from pathlib import Path

import pytest
import torch

import traincope
from traincope.record.gpu import windows
from traincope.report.document.document import to_document

STEPS, LAYERS = 7, 3


def test_traced_steps_of_a_real_training_show_operators_by_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of two steps has one forward product per layer and two backward; the first input needs no gradient."""
    monkeypatch.setattr(windows, "FIRST", 2)
    monkeypatch.setattr(windows, "EVERY", 4)
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(LAYERS)))
    with traincope.run(tmp_path / "run", level=3, budget=None) as run:
        run.describe(peak_flops=1e9)
        for _ in range(STEPS):
            model(torch.ones(2, 8)).sum().backward()
            run.step()
    document = to_document(traincope.analyze(traincope.open_run(tmp_path / "run")))
    kernels = document["kernels"]
    assert kernels is not None
    assert (kernels["source"], kernels["ranks"], kernels["steps"], kernels["traces"]) == ("host", [0], [2, 4], 2)
    gemm = next(kernel_class for kernel_class in kernels["classes"] if kernel_class["kind"] == "gemm")
    products = 2 * (LAYERS + 2 * LAYERS - 1)
    assert gemm["count"] == products + 2 * LAYERS  # with aten::linear around each
    assert gemm["rated_ns"] == gemm["total_ns"]
    assert gemm["ideal_ns"] == pytest.approx(products * 2 * 2 * 8 * 8)
    assert kernels["overlap_slowdown_ns"] is None
    assert document["gpu_partition"] is None
    assert document["recorder"]["problems"] == []
