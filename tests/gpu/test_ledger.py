"""The live ledger of a training against Kineto's trace of the same steps."""

import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function

import traincope
from tests.gpu.figures import Figures
from tests.gpu.live_and_trace import STEP, live_steps, traced_steps, worst_difference
from tests.gpu.readers import failed_hooks, gather_into, only_rank
from traincope.analysis.analyze import Analysis, analyze
from traincope.timeline import LedgerClock, open_run

STEPS, UNRECORDED_STEPS = 10, 3
GATHERED_BYTES = 256 << 20
"""On one rank an all-gather is a copy on NCCL's stream. The optimizer waits for it."""
WITHIN = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    width: int
    layers: int
    batch: int
    length: int


TINY = Size(width=64, layers=16, batch=2, length=16)
"""Each kernel takes less time than its launch."""
LARGE = Size(width=2048, layers=4, batch=4, length=1024)
"""Each layer has 50 million parameters."""


class Training:
    """A transformer in bf16 whose phases are annotated."""

    def __init__(self, size: Size) -> None:
        torch.manual_seed(0)
        layers = (
            nn.TransformerEncoderLayer(
                size.width, 4, 4 * size.width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(size.layers)
        )
        self._model = nn.Sequential(*layers).to("cuda", torch.bfloat16)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-5, fused=True)
        self._data = torch.randn(size.batch, size.length, size.width, device="cuda", dtype=torch.bfloat16)
        self._source = torch.zeros(GATHERED_BYTES, dtype=torch.uint8, device="cuda")
        self._target = torch.empty_like(self._source)

    def step(self) -> None:
        with record_function("forward"):
            output: Tensor = self._model(self._data)
        loss = output.float().square().mean()
        with record_function("backward"):
            loss.backward()
        gather_into(self._target, self._source, async_op=True).wait()
        with record_function("optimizer"):
            self._optimizer.step()
        with record_function("optimizer"):
            self._optimizer.zero_grad()

    def record(self, directory: Path) -> Analysis:
        """Record and trace the counted steps, between the warm-up (0) and a last one, which has no end on the GPU."""
        for _ in range(UNRECORDED_STEPS):
            self.step()
        torch.cuda.synchronize()
        with (
            profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler,
            traincope.run(directory / "run", budget=None) as run,
        ):
            for number in range(STEPS + 2):
                with record_function(f"{STEP}{number}"):
                    run.step()
                    self.step()
            torch.cuda.synchronize()
            time.sleep(0.1)
        profiler.export_chrome_trace(str(directory / "trace.json"))
        return analyze(open_run(directory / "run"))


@pytest.mark.usefixtures("nccl")
@pytest.mark.parametrize(("size", "host_bound"), [(TINY, True), (LARGE, False)], ids=["host-bound", "device-bound"])
def test_the_ledger_is_what_marks_would_show_in_the_trace(
    tmp_path: Path, figures: Figures, size: Size, host_bound: bool
) -> None:
    """Steps, forward, backward, optimizer and exposed communication, each within 2 % of the step.

    `tests/timeline/device/test_live_and_trace.py` applies the same comparison to a virtual GPU.
    """
    analysis = Training(size).record(tmp_path)
    assert failed_hooks(only_rank(tmp_path / "run")) == {}
    assert analysis.ledger.clock is LedgerClock.DEVICE
    assert analysis.run_ahead is not None
    assert (analysis.run_ahead.empty_ratio > 0.5) is host_bound
    (rank,) = analysis.ledger.ranks
    live = live_steps(rank)
    assert list(live) == list(range(1, STEPS + 1))
    worst, where = worst_difference(live, traced_steps(tmp_path / "trace.json"))
    kind = "host-bound" if host_bound else "device-bound"
    figures.take(
        f"ledger against Kineto's trace, {kind}, step {live[STEPS]['step'] / 1e6:.2f} ms",
        measured=f"worst {worst:.2%} of the step ({where})",
        held_to="2 % of the step",
    )
    assert worst <= WITHIN, where
