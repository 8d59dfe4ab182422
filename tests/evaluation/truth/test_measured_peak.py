"""A run that only multiplies has an MFU of about 1, of the peak that `traincope doctor --measure-peak` measured."""

from pathlib import Path

import pytest
import torch
from torch import nn

import traincope
from traincope.doctor.measured_peak import measure_peak

SIDE, PRODUCTS = 1024, 40
NOISE = 0.1


@pytest.mark.timing
def test_a_loop_of_products_runs_at_the_measured_peak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products without gradients of weights: forward and backward are square matrices of the saturating size."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    threads = torch.get_num_threads()
    assert measure_peak({"XDG_CACHE_HOME": str(tmp_path)}, threads=threads).healthy
    layer = nn.Linear(SIDE, SIDE, bias=False)
    layer.requires_grad_(False)
    x = torch.ones(SIDE, SIDE, requires_grad=True)
    ones = torch.ones(SIDE, SIDE)
    with traincope.run(tmp_path / "run") as run:
        for _ in range(4):
            for _ in range(PRODUCTS):
                layer(x).backward(ones)
                x.grad = None
            run.step()
    used = traincope.analyze(traincope.open_run(tmp_path / "run")).utilization
    assert used.work.model == 2 * 2 * SIDE**3 * PRODUCTS
    assert used.peak is not None
    assert used.peak.threads == threads
    assert used.ratios.mfu == pytest.approx(1, abs=NOISE)
