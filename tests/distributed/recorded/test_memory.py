"""Memory of real ranks by its use, against the bytes of `plan memory` and the shapes.

The plan counts matrices. Norms are vectors: two of H per block and one at the end. AdamW keeps one more number per
parameter tensor, the count of its steps.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import traincope
from tests.distributed.layouts import small_config
from tests.distributed.ranks.pool import Pool
from tests.distributed.selection import swept
from traincope.analysis.memory.split import memory_splits
from traincope.engine.config import Config, ParallelConfig
from traincope.engine.trainer import Trainer
from traincope.events import MemoryMeasure
from traincope.plan.layout.activations import ActivationPolicy
from traincope.plan.layout.layout import Layout
from traincope.plan.layout.memory import memory
from traincope.plan.model.precision import Precision
from traincope.plan.model.transformer import Transformer

FLOAT = 4
FP32 = Precision(weights="fp32", gradients="fp32", activations="fp32")
L, H, V = 4, 32, 260
"""Blocks and width of `small_config`, and a vocabulary that divides over two ranks."""
LAYOUTS = {
    "ddp": (ParallelConfig(dp=2), Layout(dp=2)),
    "fsdp": (ParallelConfig(fsdp=2), Layout(dp=2, zero=3)),
    "tp": (ParallelConfig(tp=2), Layout(tp=2)),
    "pp": (ParallelConfig(pp=2, microbatches=2), Layout(pp=2, microbatches=2)),
}


def train(config: Config, out: str) -> None:
    """Train with a record of every step, on each rank."""
    with traincope.run(out, budget=None, agent=False) as run:
        for _ in Trainer(config, device=torch.device("cpu")).steps():
            run.step()


@pytest.mark.parametrize("name", swept(LAYOUTS, but=("ddp",)))
def test_the_model_s_tensors_have_the_bytes_of_the_plan(two_ranks: Pool, tmp_path: Path, text: str, name: str) -> None:
    parallel, layout = LAYOUTS[name]
    config = small_config(text, parallel)
    model = replace(config.model, vocabulary=V)
    two_ranks.run(train, replace(config, model=model), str(tmp_path / "run"))

    splits = memory_splits(traincope.open_run(tmp_path / "run"))
    shape = Transformer(
        layers=L,
        hidden=H,
        heads=model.heads,
        kv_heads=model.kv_heads,
        ffn=model.ffn,
        vocabulary=V,
        sequence=model.sequence,
        gated_mlp=True,
        untied=True,
    )
    planned = memory(shape, layout=layout, precision=FP32, policy=ActivationPolicy())
    for rank, split in enumerate(splits):
        states = planned[rank % len(planned)].states
        vectors = norms(name, rank) * H * FLOAT
        assert split.early[MemoryMeasure.PARAMETERS] == states.weights + vectors
        # torch makes the gradient of an embedding that tp splits as a whole matrix, and cuts it afterwards.
        other_part = V * H * FLOAT // 2 if name == "tp" else 0
        assert split.early[MemoryMeasure.GRADIENTS] == states.gradients + vectors + other_part
        assert split.early[MemoryMeasure.OPTIMIZER] == states.optimizer + 2 * vectors + tensors(name, rank) * FLOAT
        # Gradients are views of DDP's buckets. They go each step, and the buckets stay.
        assert split.early[MemoryMeasure.BUFFERS] == (states.gradients + vectors if name == "ddp" else 0)
        assert sum(split.peak.parts.values()) == split.peak.total_bytes
    assert len(splits) == 2


def norms(name: str, rank: int) -> float:
    """Norms on a rank: two per block and the last one, on the last stage."""
    match name:
        case "fsdp":
            return (2 * L + 1) / 2
        case "pp":
            return L + rank
        case _:
            return 2 * L + 1


def tensors(name: str, rank: int) -> int:
    """Parameters on a rank: nine per block, the embedding, the last norm and the output."""
    return 9 * L // 2 + (1, 2)[rank] if name == "pp" else 9 * L + 3
