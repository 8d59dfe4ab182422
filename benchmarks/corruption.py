"""Cost of `corruption_check_steps` and of `trace_non_finite`: `python -m benchmarks.corruption`.

One process trains the same transformer on one thread of the CPU, without and with each of them. All times are CPU time.
The cost is what the recorder takes more (`docs/develop/overhead.md`).
"""

import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import process_time_ns

import torch
from torch import nn

import traincope
from traincope.timeline import open_run
from traincope.units import duration, share, size

STEPS, EVERY, WIDTH, LAYERS, BATCH, SEQUENCE = 12, 3, 512, 6, 2, 256
STATED_EVERY = 100


def train(out: Path, *, every: int | None = None, trace: bool = False) -> tuple[float, int, int]:
    """Return the CPU time of a step and the recorder's own in all steps, in ns, and the bytes of the state."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    data, spent_ns = torch.randn(BATCH, SEQUENCE, WIDTH), []
    with traincope.run(out, agent=False, corruption_check_steps=every, trace_non_finite=trace) as run:
        for _ in range(STEPS):
            began_ns = process_time_ns()
            model(data).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            run.step()
            spent_ns.append(process_time_ns() - began_ns)
    (rank,) = open_run(out).ranks
    num_bytes = 3 * 4 * sum(parameter.numel() for parameter in model.parameters())
    return median(spent_ns), sum(step.own_ns for step in rank.steps), num_bytes


def main() -> int:
    torch.set_num_threads(1)
    directory = Path(tempfile.mkdtemp(prefix="corruption-"))
    step_ns, own_ns, num_bytes = train(directory / "plain")
    _, checked_ns, _ = train(directory / "checked", every=EVERY)
    _, traced_ns, _ = train(directory / "traced", trace=True)
    shutil.rmtree(directory)
    check_ns = (checked_ns - own_ns) / (STEPS // EVERY)
    print(f"step without either: {duration(step_ns)}; parameters and optimizer state: {size(num_bytes)}")
    print(f"one check (both times): {duration(check_ns)}, {size(2 * num_bytes * 1e9 / check_ns)} per second")
    print(f"share of the step, every {STATED_EVERY} steps: {share(check_ns / (STATED_EVERY * step_ns))}")
    print(f"tracing values that are not finite: {share((traced_ns - own_ns) / (STEPS * step_ns))} of the step")
    return 0


if __name__ == "__main__":
    sys.exit(main())
