"""Time of steps of a billion parameters in bf16, bare and recorded, in paired blocks: `python -m tests.gpu.overhead`.

A program of its own: once torch's profiler has run in a process, every launch takes longer there.
"""

import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import traincope
from traincope.record.session.sampling import DEFAULT_BUDGET

WIDTH, HEADS, LAYERS = 2048, 16, 20
"""12 x 2048^2 x 20 = 1.01 billion parameters in the blocks."""
BATCH, LENGTH = 4, 1024
SETTLING_STEPS = 45
"""First steps of a run, in which it counts tensors and FLOPs. Their cost is measured apart."""
SEED, RESAMPLES = 0, 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A way to record: its budget, and the numbers of pairs and of timed steps in a block."""

    budget: float | None
    pairs: int
    steps: int


KINDS = {
    "detail in every step": Kind(budget=None, pairs=5, steps=16),
    "the default budget": Kind(budget=DEFAULT_BUDGET, pairs=4, steps=40),
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, length, width)."""
        shape = (*x.shape[:2], HEADS, WIDTH // HEADS)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(self.norms[0](x)).chunk(3, dim=-1))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        result: Tensor = x + self.down(functional.gelu(self.up(self.norms[1](x))))
        return result


class Training:
    def __init__(self) -> None:
        torch.manual_seed(0)
        blocks = nn.Sequential(*(Block() for _ in range(LAYERS))).to("cuda", torch.bfloat16)
        self.parameters = sum(parameter.numel() for parameter in blocks.parameters())
        self._model = DistributedDataParallel(blocks, gradient_as_bucket_view=True)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-5, fused=True)
        self._data = torch.randn(BATCH, LENGTH, WIDTH, device="cuda", dtype=torch.bfloat16)

    def seconds(self, steps: int, run: traincope.Run | None = None) -> float:
        """Return the seconds of some steps, between idle devices."""
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(steps):
            loss = self._model(self._data).float().square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
            self._optimizer.zero_grad()
            if run is not None:
                run.log(loss=loss)
                run.step()
        torch.cuda.synchronize()
        return time.perf_counter() - started


def measured(training: Training, kind: Kind, folder: Path) -> dict[str, Any]:
    """Each pair is a bare, a recorded and another bare block in a row: a GPU's drifting clock affects all.

    The ratio of the two bare blocks (A/A) shows the machine's own noise.
    """
    ratios, same, bare, first = [], [], [], []
    for pair in range(kind.pairs):
        before = training.seconds(kind.steps)
        with traincope.run(folder / str(pair), budget=kind.budget) as run:
            first.append(training.seconds(SETTLING_STEPS, run))
            recorded = training.seconds(kind.steps, run)
        after = training.seconds(kind.steps)
        ratios.append(2 * recorded / (before + after))
        same.append(after / before)
        bare.append((before + after) / (2 * kind.steps))
    step = statistics.median(bare)
    return {
        "budget": kind.budget,
        "step_seconds": step,
        "ratio": statistics.median(ratios),
        "ratio_95": list(bootstrap(ratios)),
        "bare_to_bare": statistics.median(same),
        "first_steps_seconds": statistics.median(first) - SETTLING_STEPS * step,
        "ratios": ratios,
    }


def bootstrap(ratios: list[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median."""
    draw = random.Random(SEED)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return medians[round(0.025 * RESAMPLES)], medians[round(0.975 * RESAMPLES) - 1]


def results(folder: Path) -> Iterator[tuple[str, Any]]:
    training = Training()
    training.seconds(SETTLING_STEPS)
    yield "parameters", training.parameters
    for name, kind in KINDS.items():
        yield name, measured(training, kind, folder / name.replace(" ", "-"))


def main() -> None:
    """Write the results of one process with one GPU, over NCCL, as JSON into the file of the first argument."""
    torch.cuda.set_device(0)
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{folder}/rendezvous"
        dist.init_process_group("nccl", init_method=store, rank=0, world_size=1, device_id=torch.device("cuda", 0))
        Path(sys.argv[1]).write_text(json.dumps(dict(results(Path(folder))), indent=2) + "\n")
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
