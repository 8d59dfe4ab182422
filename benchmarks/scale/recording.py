"""Recording of one rank of a large mesh on torch's fake backend: `python -m benchmarks.scale.recording OUT STAGE`.

The rank trains a stage of a pipeline, tensor-parallel within its host and sharded over replicas, as in a mesh of
16,384 ranks. The fake backend does nothing: a collective returns at once. So the records hold the rank's own work, and
`replay.py` adds the waits for others.
"""

import os
import subprocess
import sys
from pathlib import Path

STAGES, SHARDS = 4, 8
"""Sizes of the pipeline and of tensor parallelism, which is the number of ranks of a host."""
RECORDED_RANKS = 16_384
STEPS, MICROBATCHES, WIDTH = 7, 4, 64


def record_stages(out: Path) -> tuple[Path, ...]:
    """Record one rank of each stage, each by a process of its own. Returns their run directories, by stage."""
    paths = tuple(out / f"stage-{stage}" for stage in range(STAGES))
    for stage, path in enumerate(paths):
        rank = stage * SHARDS
        ranks = {"RANK": str(rank), "WORLD_SIZE": str(RECORDED_RANKS), "LOCAL_RANK": "0"}
        subprocess.run(
            [sys.executable, "-m", "benchmarks.scale.recording", str(path), str(stage)],
            env={**os.environ, **ranks, "LOCAL_WORLD_SIZE": str(SHARDS), "TRAINCOPE_AGENT": "off"},
            check=True,
        )
    return paths


def train(out: Path, *, stage: int) -> None:
    """Train a stage for `STEPS` steps, with the recorder."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    from torch.distributed.pipelining.stage import InferenceMode
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from torch.testing._internal.distributed.fake_pg import FakeStore

    import traincope

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return hidden + self.down(torch.relu(self.up(hidden)))

    class StaticShapes(Schedule1F1B):
        """Stages that do not ask their neighbours for shapes: the fake backend would answer with noise."""

        def _warmup_p2p(self, stages: list[PipelineStage], *_: object) -> None:
            for each in stages:
                each._inference_mode = InferenceMode.STATIC

    torch.set_num_threads(1)
    with traincope.run(out=out, run_id="scale") as run:
        rank = stage * SHARDS
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=RECORDED_RANKS)
        replicas = RECORDED_RANKS // (STAGES * SHARDS)
        mesh = init_device_mesh("cpu", (replicas, STAGES, SHARDS), mesh_dim_names=("dp", "pp", "tp"))
        model = nn.Sequential(Block(), Block())
        for block in model:
            parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
            fully_shard(block, mesh=mesh["dp"], reshard_after_forward=False)
        fully_shard(model, mesh=mesh["dp"], reshard_after_forward=False)
        example = (torch.zeros(MICROBATCHES, WIDTH),)
        shapes = {"input_args": example, "output_args": example, "input_grads": example, "output_grads": example}
        part = PipelineStage(model, stage, STAGES, torch.device("cpu"), group=mesh["pp"].get_group(), **shapes)
        schedule = StaticShapes(part, n_microbatches=MICROBATCHES, loss_fn=nn.functional.mse_loss)
        optimizer = torch.optim.AdamW(model.parameters())
        batch = torch.zeros(MICROBATCHES * len(example[0]), WIDTH)
        for _ in range(STEPS):
            schedule.step(*([batch] if stage == 0 else []), **({"target": batch} if stage == STAGES - 1 else {}))
            optimizer.step()
            optimizer.zero_grad()
            run.step()


if __name__ == "__main__":
    train(Path(sys.argv[1]), stage=int(sys.argv[2]))
