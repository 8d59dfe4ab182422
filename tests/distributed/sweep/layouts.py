"""The layouts of `make test-engine`, one line each: a name and the configuration tables of the layout."""

from collections.abc import Mapping
from dataclasses import replace

from traincope.engine.config import DataConfig, ExpertsConfig, FSDPConfig, ModelConfig, ParallelConfig

Tables = dict[str, object]
"""Field of Config -> its value."""
MODEL = ModelConfig(layers=8, hidden=32, heads=8, kv_heads=4, ffn=96, sequence=16, vocabulary=264)
"""Eight layers, for four ranks with two stages each. Each size can be split in eight."""


def layout(**sizes: object) -> Tables:
    """A layout made by `[parallel]` alone."""
    return {"parallel": ParallelConfig(**sizes)}  # type: ignore[arg-type]


def mixture(*, capacity_factor: float | None = None, **sizes: object) -> Tables:
    """A layout of a model with experts in place of its feed-forwards."""
    return {**layout(**sizes), "experts": ExpertsConfig(number=8, top_k=2, ffn=32, capacity_factor=capacity_factor)}


def packed(tables: Tables) -> Tables:
    """A layout with attention inside words: the documents of `sweep.write_text`."""
    return {**tables, "data": DataConfig(end_of_document=ord(" "))}


FOUR_RANKS: Mapping[str, Tables] = {
    "ddp 4": layout(dp=4),
    "fsdp 4": layout(fsdp=4),
    "fsdp 4, ZeRO-2": layout(fsdp=4) | {"fsdp": FSDPConfig(stage=2)},
    "fsdp 4 in units of 3 blocks": layout(fsdp=4) | {"fsdp": FSDPConfig(unit_blocks=3)},
    "hsdp 2 x 2": layout(dp_replicate=2, fsdp=2),
    "fsdp 2 x tp 2": layout(fsdp=2, tp=2),
    "fsdp 2 x tp 2 without sequence parallelism": layout(fsdp=2, tp=2, sequence_parallel=False),
    "tp 4": layout(tp=4),
    "cp 2 x tp 2": layout(cp=2, tp=2),
    "fsdp 2 x cp 2 ulysses": layout(fsdp=2, cp=2, cp_method="ulysses"),
    "ddp 2 x cp 2": layout(dp=2, cp=2),
    "ddp 2 x cp 2 ulysses": layout(dp=2, cp=2, cp_method="ulysses"),
    "pp 2 gpipe x ddp 2": layout(pp=2, dp=2, schedule="gpipe", microbatches=4),
    "pp 2 1f1b x tp 2": layout(pp=2, tp=2, schedule="1f1b", microbatches=4),
    "pp 2 zb-v x cp 2": layout(pp=2, cp=2, schedule="zb-v", microbatches=4),
    "pp 4 zb-1p": layout(pp=4, schedule="zb-1p", microbatches=8),
    "fsdp 2 x tp 2, packed": packed(layout(fsdp=2, tp=2)),
    "fsdp 4, ep 4": mixture(fsdp=4, ep=4),
    "fsdp 2 x tp 2 of experts, with a capacity": mixture(fsdp=2, tp=2, capacity_factor=1.0),
    "fsdp 2 x cp 2 of experts, with a capacity": mixture(fsdp=2, cp=2, capacity_factor=1.0),
    "tp 4 of experts": mixture(tp=4),
    "fsdp 2 x tp 2, ep 2": mixture(fsdp=2, tp=2, ep=2),
    "cp 2 x tp 2, ep 2, without sequence parallelism": mixture(cp=2, tp=2, ep=2, sequence_parallel=False),
    "pp 2 1f1b x fsdp 2, ep 2, with a capacity": mixture(
        pp=2, fsdp=2, ep=2, schedule="1f1b", microbatches=4, capacity_factor=1.0
    ),
}
EIGHT_RANKS: Mapping[str, Tables] = {
    "hsdp 2 x 2 x tp 2": layout(dp_replicate=2, fsdp=2, tp=2),
    "fsdp 2 x cp 2 x tp 2": layout(fsdp=2, cp=2, tp=2),
    "hsdp 2 x cp 4": layout(dp_replicate=2, cp=4),
    "pp 2 1f1b x fsdp 2 x tp 2": layout(pp=2, fsdp=2, tp=2, schedule="1f1b", microbatches=4),
    "pp 2 1f1b x fsdp 2 x tp 2, packed": packed(layout(pp=2, fsdp=2, tp=2, schedule="1f1b", microbatches=4)),
    "pp 2 1f1b x hsdp 2 x 2": layout(pp=2, dp_replicate=2, fsdp=2, schedule="1f1b", microbatches=4),
    "pp 2 interleaved x ddp 4": layout(pp=2, dp=4, schedule="interleaved", microbatches=4),
    "pp 2 interleaved x ddp 2 x cp 2": layout(pp=2, dp=2, cp=2, schedule="interleaved", microbatches=4),
    "ddp 2 x cp 2 x tp 2": layout(dp=2, cp=2, tp=2),
    "pp 2 zb-v x fsdp 2 x cp 2": layout(pp=2, fsdp=2, cp=2, schedule="zb-v", microbatches=4),
    "pp 2 gpipe x cp 2 ulysses x tp 2": layout(pp=2, cp=2, tp=2, cp_method="ulysses", schedule="gpipe", microbatches=4),
    "pp 4 zb-1p x fsdp 2": layout(pp=4, fsdp=2, schedule="zb-1p", microbatches=4),
    "pp 4 interleaved x tp 2": layout(pp=4, tp=2, schedule="interleaved", microbatches=4),
    "pp 4 1f1b x fsdp 2 of 7 layers": {
        **layout(pp=4, fsdp=2, schedule="1f1b", microbatches=4),
        "model": replace(MODEL, layers=7),
    },
    "pp 4 dualpipev x cp 2": layout(pp=4, cp=2, schedule="dualpipev", microbatches=8),
    "fsdp 8 of experts": mixture(fsdp=8),
    "hsdp 2 x 4, ep 2, with a capacity": mixture(dp_replicate=2, fsdp=4, ep=2, capacity_factor=1.0),
    "fsdp 4 x cp 2, ep 4": mixture(fsdp=4, cp=2, ep=4),
    "pp 2 1f1b x fsdp 2 x tp 2 of experts": mixture(pp=2, fsdp=2, tp=2, schedule="1f1b", microbatches=4),
    "cp 2 x tp 4 of experts": mixture(cp=2, tp=4),
    "ddp 2 x cp 4 ulysses of experts, with a capacity": mixture(dp=2, cp=4, cp_method="ulysses", capacity_factor=1.0),
    "fsdp 4 x tp 2, ep 2, with a capacity": mixture(fsdp=4, tp=2, ep=2, capacity_factor=1.0),
    "pp 2 zb-v x fsdp 2 x tp 2, ep 2": mixture(pp=2, fsdp=2, tp=2, ep=2, schedule="zb-v", microbatches=4),
    "pp 2 zb-v x fsdp 4, ep 2": mixture(pp=2, fsdp=4, ep=2, schedule="zb-v", microbatches=4),
}
SIXTEEN_RANKS: Mapping[str, Tables] = {
    "pp 2 1f1b x fsdp 2 x cp 2 x tp 2": layout(pp=2, fsdp=2, cp=2, tp=2, schedule="1f1b", microbatches=4),
}
LAYOUTS: Mapping[str, Tables] = {**FOUR_RANKS, **EIGHT_RANKS, **SIXTEEN_RANKS}
