"""Cost of the engine compared with a hand-written loop: `python -m benchmarks.engine`.

The same GPT on the same batches, trained by `Trainer` and by the shortest equivalent loop of torch's own parts: 1 rank,
DDP on 2, FSDP2 on 2. Both run in the same processes, in alternating blocks of steps: plain, plain again (the A/A row),
engine. Their losses are compared, so both did the same work. It passes if the whole 95 % interval of the engine's
tokens per second is at least 0.98 of the plain loop's. An interval that contains 0.98 shows nothing: run it where
nothing else runs.
"""

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from benchmarks.judging import Judged, at_least
from benchmarks.paired import Block, in_turns, interval, ratios, step_seconds
from tests.distributed.ranks.pool import Pool
from traincope.engine.config import Config, DataConfig, ModelConfig, OptimizerConfig, ParallelConfig, TrainConfig
from traincope.engine.corpus import read_corpus
from traincope.engine.model.initialise import initialise
from traincope.engine.model.model import GPT
from traincope.engine.trainer import Trainer

ROUNDS = 16
STEPS_A_BLOCK = 6
SETTLING = 1
"""Uncounted steps at the begin of a block, while the caches still hold the other side's data."""
WARM_UP = 3
KINDS = ("plain", "plain again", "engine")
MIN_RATIO = 0.98
SAME_LOSS = 1e-4
"""Tolerance of the losses: the order of sums differs; after a hundred steps at a small learning rate."""

LAYOUTS = {
    "1 rank": ParallelConfig(),
    "DDP x 2": ParallelConfig(dp=2),
    "FSDP2 x 2": ParallelConfig(fsdp=2),
}

Loop = Iterator[float]
"""Runs a step and returns its loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Measurements of one rank."""

    blocks: list[Block]
    losses: dict[str, list[float]]
    """Losses of all steps, by kind."""


def main() -> int:
    """Measure and print."""
    table = Table(title=f"Tokens per second, engine compared with a plain loop (torch {torch.__version__})", box=None)
    for heading in ("layout", "trained by", "tokens/s", "x plain", "95 % interval", f"all >= {MIN_RATIO}"):
        table.add_column(heading, justify="left" if heading in ("layout", "trained by") else "right")
    passed = True
    with tempfile.TemporaryDirectory() as directory:
        for name, parallel in LAYOUTS.items():
            config = configuration(_text(Path(directory)), parallel)
            pool = Pool(parallel.world_size)
            ranks = pool.run(measure, config, timeout_seconds=300.0)
            pool.stop()
            passed &= _add_rows(table, name, ranks, tokens=config.tokens_per_step)
    console = Console(width=110)
    console.print(table)
    console.print(
        (
            f"\nMedians of {ROUNDS} blocks of {STEPS_A_BLOCK - SETTLING} steps, each divided by the plain block next "
            f"to it; load of the machine at the end {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores."
        ),
        highlight=False,
    )
    return int(not passed)


def _text(directory: Path) -> str:
    path = directory / "squares.txt"
    path.write_text("\n".join(f"{n} squared is {n * n}" for n in range(50_000)))
    return str(path)


def configuration(text: str, parallel: ParallelConfig) -> Config:
    """1.1 million parameters, 2,048 tokens per step; a block of each kind in each round, after the warm-up."""
    return Config(
        model=ModelConfig(layers=4, hidden=128, heads=4, kv_heads=2, ffn=384, sequence=128),
        data=DataConfig(path=text),
        parallel=parallel,
        train=TrainConfig(steps=WARM_UP + ROUNDS * STEPS_A_BLOCK, batch=16),
        optimizer=OptimizerConfig(lr=1e-4, clip_norm=1.0),
    )


# -- on every rank --------------------------------------------------------------------------------


def measure(config: Config) -> Measured:
    """All blocks of this rank, in the same order on every rank."""
    loops: Mapping[str, Loop] = {"plain": plain(config), "plain again": plain(config), "engine": engine(config)}
    losses = {kind: [next(loop) for _ in range(WARM_UP)] for kind, loop in loops.items()}

    def block(kind: str, _: int) -> Block:
        dist.barrier()
        seconds = []
        for _ in range(STEPS_A_BLOCK):
            started = time.perf_counter()
            losses[kind].append(next(loops[kind]))
            seconds.append(time.perf_counter() - started)
        return Block(kind=kind, seconds=seconds[SETTLING:])

    return Measured(blocks=list(in_turns(KINDS, rounds=ROUNDS, block=block)), losses=losses)


def engine(config: Config) -> Loop:
    for result in Trainer(config, device=torch.device("cpu")).steps():
        assert result.loss is not None
        yield result.loss


def plain(config: Config) -> Loop:
    """A minimal training loop for one layout."""
    model = GPT(config.model)
    initialise(model, config.model, seed=config.train.seed)
    parallel = _wrapped(model, config.parallel)
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    gains = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": config.optimizer.weight_decay}, {"params": gains, "weight_decay": 0.0}],
        lr=config.optimizer.lr,
        betas=(config.optimizer.beta1, config.optimizer.beta2),
        fused=True,
    )
    for tokens in _batches(config):
        logits = parallel(tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        norm.item()
        loss = loss.detach()
        if dist.get_world_size() > 1:
            dist.all_reduce(loss)
        yield loss.item() / dist.get_world_size()


def _wrapped(model: GPT, parallel: ParallelConfig) -> nn.Module:
    if parallel.dp > 1:
        return DistributedDataParallel(model, gradient_as_bucket_view=True)
    if parallel.fsdp > 1:
        mesh = init_device_mesh("cpu", (parallel.fsdp,), mesh_dim_names=("fsdp",))
        for block in model.blocks.values():
            fully_shard(block, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    return model


def _batches(config: Config) -> Iterator[Tensor]:
    """This rank's part of the engine's batches, int64 (B, S + 1)."""
    tokens, length = read_corpus(config.data).training, config.model.sequence
    order = np.random.default_rng([config.train.seed, 0]).permutation((len(tokens) - 1) // length)
    local_batch = config.train.batch // dist.get_world_size()
    within = np.arange(length + 1)
    for step in range(config.train.steps):
        start = step * config.train.batch + dist.get_rank() * local_batch
        yield torch.from_numpy(tokens[order[start : start + local_batch, None] * length + within].astype(np.int64))


# -- the table --------------------------------------------------------------------------------------


def _add_rows(table: Table, name: str, ranks: list[Measured], *, tokens: int) -> bool:
    """Add a row for each kind; returns whether the engine passed."""
    blocks = [rank.blocks for rank in ranks]
    reference = step_seconds(blocks, "plain")
    passed = True
    for kind in KINDS:
        seconds = step_seconds(blocks, kind)
        speeds = 1 / ratios(seconds, reference)
        low, high = interval(speeds)
        ratio = float(np.median(speeds))
        verdict = "" if kind != "engine" else _verdict(ranks, low=low, high=high)
        passed &= verdict in ("", Judged.PASSED.value)
        table.add_row(
            name if kind == KINDS[0] else "",
            {"plain again": "plain (A/A)"}.get(kind, kind),
            f"{tokens / np.median(seconds):,.0f}",
            "" if kind == "plain" else f"{ratio:.3f}",
            "" if kind == "plain" else f"{low:.3f}-{high:.3f}",
            verdict,
        )
    table.add_section()
    return passed


def _verdict(ranks: list[Measured], *, low: float, high: float) -> str:
    apart = max(np.abs(np.subtract(rank.losses["engine"], rank.losses["plain"])).max() for rank in ranks)
    if apart > SAME_LOSS:
        return f"LOSSES DIFFER by {apart:.1e}"
    return at_least(low, high, budget=MIN_RATIO).value


if __name__ == "__main__":
    sys.exit(main())
