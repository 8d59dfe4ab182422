"""A setting of `[ddp]`, `[fsdp]` or `[offload]` that could do nothing, or cannot work, is refused in one sentence."""

from collections.abc import Callable

import pytest

from traincope.engine.config import Config, DDPConfig, FSDPConfig, OffloadConfig, ParallelConfig
from traincope.errors import ConfigError

REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "zero-1 of nothing": (
        lambda: Config(ddp=DDPConfig(shard_optimizer=True)),
        "ddp.shard_optimizer = true needs parallel.dp > 1; without replicas leave it out",
    ),
    "compression of shards": (
        lambda: Config(parallel=ParallelConfig(fsdp=2), ddp=DDPConfig(compression="bf16")),
        "ddp.compression = 'bf16' needs parallel.dp > 1; without replicas leave it out",
    ),
    "compression of parts": (
        lambda: Config(parallel=ParallelConfig(dp=2, tp=2), ddp=DDPConfig(compression="fp16")),
        "ddp.compression = 'fp16' needs whole parameters, but parallel.tp = 2 cuts them; leave one of the two out",
    ),
    "buckets of nothing": (
        lambda: Config(parallel=ParallelConfig(fsdp=2), ddp=DDPConfig(bucket_mib=1.0)),
        "ddp.bucket_mib = 1.0 needs parallel.dp > 1; without replicas leave it out",
    ),
    "buckets of parts": (
        lambda: Config(parallel=ParallelConfig(dp=2, tp=2), ddp=DDPConfig(bucket_mib=1.0)),
        "ddp.bucket_mib = 1.0 needs whole parameters, but parallel.tp = 2 cuts them; leave one of the two out",
    ),
    "endless buckets": (
        lambda: DDPConfig(bucket_mib=float("inf")),
        "ddp.bucket_mib = inf is not finite; give a number",
    ),
    "a width of no factors": (
        lambda: DDPConfig(compression="bf16", powersgd_rank=8),
        "ddp.powersgd_rank = 8 is for ddp.compression = 'powersgd'; set that, or leave it out",
    ),
    "a start of no factors": (
        lambda: DDPConfig(powersgd_start=3),
        "ddp.powersgd_start = 3 is for ddp.compression = 'powersgd'; set that, or leave it out",
    ),
    "factors from the first step on": (
        lambda: DDPConfig(compression="powersgd", powersgd_start=1),
        "ddp.powersgd_start = 1 must be at least 2",
    ),
    "zero-2 of replicas": (
        lambda: Config(parallel=ParallelConfig(dp=2), fsdp=FSDPConfig(stage=2)),
        "fsdp.stage = 2 needs parallel.fsdp > 1; without shards leave it out",
    ),
    "zero-2 of stages": (
        lambda: Config(parallel=ParallelConfig(pp=2, fsdp=2), fsdp=FSDPConfig(stage=2)),
        "fsdp.stage = 2 does nothing with parallel.pp = 2, for a pipeline gathers all of a stage at once and keeps it; "
        "leave it out",
    ),
    "ahead of stages": (
        lambda: Config(parallel=ParallelConfig(pp=2, cp=2), fsdp=FSDPConfig(prefetch=2)),
        "fsdp.prefetch = 2 does nothing with parallel.pp = 2, for a pipeline gathers all of a stage at once and keeps "
        "it; leave it out",
    ),
    "units of replicas": (
        lambda: Config(parallel=ParallelConfig(dp=2), fsdp=FSDPConfig(unit_blocks=2)),
        "fsdp.unit_blocks = 2 needs parallel.fsdp > 1; without shards leave it out",
    ),
    "zero-2 of replicas of cut sequences": (
        lambda: Config(parallel=ParallelConfig(dp=2, cp=2), fsdp=FSDPConfig(stage=2)),
        "fsdp.stage = 2 needs parallel.fsdp > 1; without shards leave it out",
    ),
    "a node of no shards": (
        lambda: Config(fsdp=FSDPConfig(node_ranks=2)),
        "fsdp.node_ranks = 2 needs parallel.fsdp > 1; without shards leave it out",
    ),
    "one node": (
        lambda: Config(parallel=ParallelConfig(fsdp=4), fsdp=FSDPConfig(node_ranks=4)),
        "fsdp.node_ranks = 4 does not divide the 4 ranks of a shard group (pp = 1) into several nodes; use a divisor "
        "between 1 and 4, and no pipeline",
    ),
    "a node's copy that nobody reads": (
        lambda: FSDPConfig(stage=2, node_ranks=2),
        "fsdp.node_ranks = 2 needs fsdp.stage = 3; stage 2 gathers nothing in backward",
    ),
    "a crooked block": (
        lambda: FSDPConfig(quantize_weights=True, quantization_block=30),
        "fsdp.quantization_block = 30 is no multiple of 4, the bytes of a scale; make it one",
    ),
    "blocks of floats": (
        lambda: FSDPConfig(quantization_block=64),
        "fsdp.quantization_block = 64 is for fsdp.quantize_weights or fsdp.quantize_gradients; set one, or leave it "
        "out",
    ),
    "offload of replicas": (
        lambda: Config(parallel=ParallelConfig(dp=2), offload=OffloadConfig(parameters="cpu")),
        "offload.parameters = 'cpu' needs parallel.fsdp > 1: it is FSDP that fetches them",
    ),
    "a state that is there already": (
        lambda: Config(parallel=ParallelConfig(fsdp=2), offload=OffloadConfig(parameters="file", optimizer="cpu")),
        "offload.optimizer = 'cpu' adds nothing to offload.parameters = 'file', with which the optimizer runs on the "
        "CPU already; leave it out",
    ),
    "two ways to place a state": (
        lambda: Config(
            parallel=ParallelConfig(dp=2), ddp=DDPConfig(shard_optimizer=True), offload=OffloadConfig(optimizer="file")
        ),
        "offload.optimizer = 'file' cannot be combined with ddp.shard_optimizer; use parallel.fsdp, or one of the two",
    ),
    "no folder": (
        lambda: OffloadConfig(directory="/nowhere/at/all"),
        "offload.directory = '/nowhere/at/all' is no folder; make it, or name another",
    ),
    "a folder for nothing": (
        lambda: OffloadConfig(parameters="cpu", directory="/"),
        "offload.directory = '/' would stay empty; set offload.parameters or offload.optimizer to 'file', or leave it "
        "out",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_with_the_remedy(case: str) -> None:
    make, sentence = REFUSED[case]
    with pytest.raises(ConfigError) as refused:
        make()
    assert str(refused.value) == sentence


def test_shards_over_context_are_shards_too() -> None:
    Config(parallel=ParallelConfig(cp=4), fsdp=FSDPConfig(stage=3, node_ranks=2, quantize_weights=True))


def test_replicas_of_what_is_cut_are_reduced_in_units_too() -> None:
    Config(parallel=ParallelConfig(dp=2, tp=2), fsdp=FSDPConfig(unit_blocks=2))


def test_a_folder_is_for_either_kind_of_file() -> None:
    OffloadConfig(parameters="file", directory="/")
    OffloadConfig(optimizer="file", directory="/")
