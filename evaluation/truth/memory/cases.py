"""Trainings of every layout that the engine runs on a CPU and `plan.allocator` describes.

Sizes are such that parameters and activations both weigh. The cases below `large vocabulary` have their peak elsewhere:
at the loss, or among FSDP's buffers.
"""

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from traincope.engine.config import (
    Config,
    DataConfig,
    DDPConfig,
    ExpertsConfig,
    FSDPConfig,
    ModelConfig,
    ParallelConfig,
    TrainConfig,
)

MODEL = ModelConfig(layers=4, hidden=256, heads=4, kv_heads=2, ffn=704, sequence=128)
EVEN = replace(MODEL, vocabulary=260)
"""Its vocabulary divides over two ranks."""
VOCABULARY = replace(MODEL, vocabulary=4096)
WIDE = replace(MODEL, layers=5, hidden=512, ffn=1408)
EXPERTS = ExpertsConfig(number=4, top_k=2, ffn=352, capacity_factor=1.0)
"""With as many rows on each rank, whatever the router chooses."""
ZERO1 = DDPConfig(shard_optimizer=True)
ZERO2 = FSDPConfig(stage=2)

WARM_UP = 2
"""Steps that create AdamW's state, and DDP's last buckets."""
MEASURED = 3
TEXT = "One sentence after the other. " * 4_000


def _case(
    batch: int,
    model: ModelConfig = MODEL,
    *,
    train: dict[str, Any] | None = None,
    experts: ExpertsConfig | None = None,
    ddp: DDPConfig | None = None,
    sharding: FSDPConfig | None = None,
    **parallel: Any,
) -> Config:
    return Config(
        model=model,
        parallel=ParallelConfig(**parallel),
        train=TrainConfig(steps=WARM_UP + MEASURED, batch=batch, **(train or {})),
        experts=experts,
        ddp=ddp or DDPConfig(),
        fsdp=sharding or FSDPConfig(),
    )


FULL, TWICE = {"recompute": "full"}, {"accumulation": 2}
CASES = MappingProxyType(
    {
        "one rank": _case(8),
        "accumulation": _case(16, train=TWICE),
        "dropout": _case(8, replace(MODEL, dropout=0.1)),
        "recompute selective": _case(8, train={"recompute": "selective"}),
        "recompute full": _case(8, train=FULL),
        "experts": _case(8, experts=EXPERTS),
        "dp": _case(16, dp=2),
        "zero 1": _case(16, ddp=ZERO1, dp=2),
        "zero 2": _case(32, train=TWICE, sharding=ZERO2, fsdp=2),
        "fsdp": _case(16, fsdp=2),
        "hsdp": _case(16, fsdp=2, dp_replicate=2),
        "tp": _case(8, EVEN, tp=2),
        "tp, whole norms": _case(8, EVEN, tp=2, sequence_parallel=False),
        "pp 1f1b": _case(16, pp=2, microbatches=4),
        "pp interleaved": _case(16, pp=2, microbatches=4, virtual=2),
        "pp gpipe": _case(16, pp=2, microbatches=4, schedule="gpipe"),
        "cp ring": _case(16, cp=2),
        "cp ulysses": _case(16, cp=2, cp_method="ulysses"),
        "ep": _case(16, experts=EXPERTS, fsdp=2, ep=2),
        "dp x tp": _case(16, EVEN, dp=2, tp=2),
        "fsdp x tp": _case(16, EVEN, fsdp=2, tp=2),
        "dp x cp": _case(16, dp=2, cp=2),
        "fsdp x ep, shared": _case(16, replace(MODEL, layers=3), experts=replace(EXPERTS, shared=True), fsdp=4, ep=2),
        "large vocabulary, dp": _case(8, VOCABULARY, dp=2),
        "large vocabulary, tp": _case(8, VOCABULARY, tp=2),
        "large vocabulary, pp": _case(16, VOCABULARY, pp=2, microbatches=4),
        "wide, zero 1": _case(4, WIDE, ddp=ZERO1, dp=2),
        "wide, zero 2": _case(8, WIDE, train=TWICE, sharding=ZERO2, fsdp=2),
        "wide, fsdp, accumulation": _case(8, WIDE, train=TWICE, fsdp=2),
        "wide, fsdp, full": _case(4, WIDE, train=FULL, fsdp=2),
        "wide, pp, full": _case(16, WIDE, train=FULL, pp=2, microbatches=4),
    }
)
"""Name -> training, without its text."""


def configured(name: str, text: Path) -> Config:
    return replace(CASES[name], data=DataConfig(path=str(text), held_out=0.2))
