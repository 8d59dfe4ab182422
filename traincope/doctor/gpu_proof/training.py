"""Trainings of the proof on one rank: a transformer in bf16, recorded and traced, then recorded in windows."""

import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function

import traincope
from traincope.doctor.gpu_proof.judging import COMPARED, LARGE_KERNELS, RUN, SMALL_KERNELS, WINDOWS, trace_name
from traincope.doctor.gpu_proof.traced_marks import STEP
from traincope.engine.ranks.renamed import gather_into
from traincope.record.instrumentation.guard import meter

UNRECORDED_STEPS = 3
"""Steps before a run begins."""
SETTLING_STEPS, JUDGED_STEPS = 42, 21
"""Steps before, and steps that measure the length of a step and the recorder's own time in it."""
MIN_WINDOWED_STEPS = 16
MAX_WINDOWED_STEPS = 20_000
BUDGET_SHARE = 0.5
"""Budget of the run in windows, as a share of the own time of detail: then one block of two to eight is a window."""
RETIRED_WITHIN_SECONDS = 0.1
"""Time for the recorder's thread to read the last marks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    width: int
    layers: int
    batch: int
    length: int
    gathered_bytes: int
    """Bytes per rank of an all-gather in every step. On one rank it is a copy on NCCL's stream."""


SMALL = Size(width=64, layers=16, batch=2, length=16, gathered_bytes=256 << 20)
"""Each kernel takes less time than its launch."""
LARGE = Size(width=2048, layers=4, batch=4, length=1024, gathered_bytes=256 << 20)
"""Each layer has 50 million parameters."""
ON_CPU = Size(width=32, layers=2, batch=2, length=16, gathered_bytes=1 << 10)
"""A training without a GPU proves nothing; it tests this code."""

SIZES = {SMALL_KERNELS: SMALL, LARGE_KERNELS: LARGE}
SIZES_ON_CPU = {SMALL_KERNELS: ON_CPU}


class Training:
    """A transformer whose phases are annotated. The optimizer waits for an all-gather."""

    def __init__(self, size: Size, device: torch.device) -> None:
        torch.manual_seed(0)
        layers = (
            nn.TransformerEncoderLayer(
                size.width, 4, 4 * size.width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(size.layers)
        )
        self._device = device
        self._model = nn.Sequential(*layers).to(device, torch.bfloat16)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-5, fused=True)
        self._data = torch.randn(size.batch, size.length, size.width, device=device, dtype=torch.bfloat16)
        self._source = torch.zeros(size.gathered_bytes, dtype=torch.uint8, device=device)
        self._target = torch.empty(dist.get_world_size() * size.gathered_bytes, dtype=torch.uint8, device=device)

    def step(self) -> None:
        with record_function("forward"):
            output: Tensor = self._model(self._data)
        loss = output.float().square().mean()
        with record_function("backward"):
            loss.backward()  # type: ignore[no-untyped-call]
        gather_into(self._target, self._source, async_op=True).wait()
        with record_function("optimizer"):
            self._optimizer.step()
        with record_function("optimizer"):
            self._optimizer.zero_grad()

    def record(self, run: Path, *, trace: Path) -> None:
        """Record and trace the compared steps, those before them, and a last one, which has no end on the GPU."""
        for _ in range(UNRECORDED_STEPS):
            self.step()
        self._finish()
        on_gpu = [ProfilerActivity.CUDA] if self._device.type == "cuda" else []
        with (
            profile(activities=[ProfilerActivity.CPU, *on_gpu]) as profiler,
            traincope.run(run, budget=None) as recording,
        ):
            for number in range(COMPARED.stop + 1):
                with record_function(f"{STEP}{number}"):
                    recording.step()
                    self.step()
            self._finish()
            time.sleep(RETIRED_WITHIN_SECONDS)
        profiler.export_chrome_trace(str(trace))

    def record_in_windows(self, run: Path, *, judged: Path, seconds: float) -> None:
        """Record steps in windows for about `seconds`. All ranks make the same number of steps, with one budget.

        A first run, in `judged`, measures the length of a step and the recorder's share of it.
        """
        own_ns = []
        with traincope.run(judged, budget=None) as recording:
            self._steps(recording, SETTLING_STEPS)
            began_ns = time.monotonic_ns()
            for _ in range(JUDGED_STEPS):
                before_ns = meter.own_ns
                self._step(recording)
                own_ns.append(meter.own_ns - before_ns)
            self._finish()
            length_ns = (time.monotonic_ns() - began_ns) / JUDGED_STEPS
        # The median: a run counts FLOPs and samples memory closely in some of its first steps.
        own_ratio = median(own_ns) / length_ns
        agreed = torch.tensor([seconds * 1e9 / length_ns, own_ratio], device=self._device)
        dist.all_reduce(agreed, op=dist.ReduceOp.MIN)
        steps, own_ratio = agreed.tolist()
        with traincope.run(run, budget=BUDGET_SHARE * own_ratio) as recording:
            self._steps(recording, min(max(int(steps), MIN_WINDOWED_STEPS), MAX_WINDOWED_STEPS))

    def _steps(self, recording: traincope.Run, number: int) -> None:
        for _ in range(number):
            self._step(recording)
        self._finish()

    def _step(self, recording: traincope.Run) -> None:
        recording.step()
        self.step()

    def _finish(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def train(folder: Path, *, device: torch.device, seconds: float) -> None:
    """Train every size, as one rank of the default process group, and leave runs and traces in `folder`."""
    for name, size in (SIZES if device.type == "cuda" else SIZES_ON_CPU).items():
        (folder / name).mkdir(exist_ok=True)
        training = Training(size, device)
        dist.barrier()
        training.record(folder / name / RUN, trace=folder / name / trace_name(dist.get_rank()))
    training.record_in_windows(folder / WINDOWS, judged=folder / "judged", seconds=seconds)
