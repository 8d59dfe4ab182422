"""A setting of `[ddp]`, `[fsdp]` or `[offload]` without effect or without support is refused in one sentence."""

from collections.abc import Callable

import pytest

from traincope.engine.config import Config, DDPConfig, FSDPConfig, OffloadConfig, ParallelConfig
from traincope.errors import ConfigError

REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "zero-1 without replicas": (
        lambda: Config(ddp=DDPConfig(shard_optimizer=True)),
        "ddp.shard_optimizer = true needs parallel.dp > 1; without replicas leave it out",
    ),
    "compression without replicas": (
        lambda: Config(parallel=ParallelConfig(fsdp=2), ddp=DDPConfig(compression="bf16")),
        "ddp.compression = 'bf16' needs parallel.dp > 1; without replicas leave it out",
    ),
    "compression with tp": (
        lambda: Config(parallel=ParallelConfig(dp=2, tp=2), ddp=DDPConfig(compression="fp16")),
        "ddp.compression = 'fp16' needs whole parameters, but parallel.tp = 2 splits them; leave one of the two out",
    ),
    "buckets without replicas": (
        lambda: Config(parallel=ParallelConfig(fsdp=2), ddp=DDPConfig(bucket_mib=1.0)),
        "ddp.bucket_mib = 1.0 needs parallel.dp > 1; without replicas leave it out",
    ),
    "buckets with tp": (
        lambda: Config(parallel=ParallelConfig(dp=2, tp=2), ddp=DDPConfig(bucket_mib=1.0)),
        "ddp.bucket_mib = 1.0 needs whole parameters, but parallel.tp = 2 splits them; leave one of the two out",
    ),
    "infinite buckets": (
        lambda: DDPConfig(bucket_mib=float("inf")),
        "ddp.bucket_mib = inf is not finite; give a number",
    ),
    "a powersgd width without powersgd": (
        lambda: DDPConfig(compression="bf16", powersgd_rank=8),
        "ddp.powersgd_rank = 8 works only with ddp.compression = 'powersgd'; set that, or leave it out",
    ),
    "a powersgd start without powersgd": (
        lambda: DDPConfig(powersgd_start=3),
        "ddp.powersgd_start = 3 works only with ddp.compression = 'powersgd'; set that, or leave it out",
    ),
    "powersgd from the first step": (
        lambda: DDPConfig(compression="powersgd", powersgd_start=1),
        "ddp.powersgd_start is 1; it must be at least 2",
    ),
    "zero-2 of replicas": (
        lambda: Config(parallel=ParallelConfig(dp=2), fsdp=FSDPConfig(stage=2)),
        "fsdp.stage = 2 needs parallel.fsdp > 1; without shards leave it out",
    ),
    "zero-2 of a pipeline": (
        lambda: Config(parallel=ParallelConfig(pp=2, fsdp=2), fsdp=FSDPConfig(stage=2)),
        "fsdp.stage = 2 has no effect with parallel.pp = 2: a pipeline gathers a whole stage at once and keeps "
        "it; leave it out",
    ),
    "prefetch in a pipeline": (
        lambda: Config(parallel=ParallelConfig(pp=2, cp=2), fsdp=FSDPConfig(prefetch=2)),
        "fsdp.prefetch = 2 has no effect with parallel.pp = 2: a pipeline gathers a whole stage at once and keeps"
        " it; leave it out",
    ),
    "units of replicas": (
        lambda: Config(parallel=ParallelConfig(dp=2), fsdp=FSDPConfig(unit_blocks=2)),
        "fsdp.unit_blocks = 2 needs parallel.fsdp > 1; without shards leave it out",
    ),
    "zero-2 of replicas with cp": (
        lambda: Config(parallel=ParallelConfig(dp=2, cp=2), fsdp=FSDPConfig(stage=2)),
        "fsdp.stage = 2 needs parallel.fsdp > 1; without shards leave it out",
    ),
    "node ranks without shards": (
        lambda: Config(fsdp=FSDPConfig(node_ranks=2)),
        "fsdp.node_ranks = 2 needs parallel.fsdp > 1; without shards leave it out",
    ),
    "one node": (
        lambda: Config(parallel=ParallelConfig(fsdp=4), fsdp=FSDPConfig(node_ranks=4)),
        "fsdp.node_ranks = 4 does not divide the 4 ranks of a shard group (pp = 1) into several nodes; use a divisor "
        "between 1 and 4, and no pipeline",
    ),
    "node ranks with zero-2": (
        lambda: FSDPConfig(stage=2, node_ranks=2),
        "fsdp.node_ranks = 2 needs fsdp.stage = 3; stage 2 gathers nothing in backward",
    ),
    "a quantization block that is not a multiple of four": (
        lambda: FSDPConfig(quantize_weights=True, quantization_block=30),
        "fsdp.quantization_block = 30 is not a multiple of 4, the bytes of a scale; use a multiple of 4",
    ),
    "a quantization block without quantization": (
        lambda: FSDPConfig(quantization_block=64),
        "fsdp.quantization_block = 64 works only with fsdp.quantize_weights or fsdp.quantize_gradients; set one "
        "of them, or leave it out",
    ),
    "offload of replicas": (
        lambda: Config(parallel=ParallelConfig(dp=2), offload=OffloadConfig(parameters="cpu")),
        "offload.parameters = 'cpu' needs parallel.fsdp > 1, because FSDP fetches them",
    ),
    "an offloaded optimizer of offloaded parameters": (
        lambda: Config(parallel=ParallelConfig(fsdp=2), offload=OffloadConfig(parameters="file", optimizer="cpu")),
        "offload.optimizer = 'cpu' adds nothing to offload.parameters = 'file': the optimizer runs on the CPU "
        "already; leave it out",
    ),
    "two ways to place a state": (
        lambda: Config(
            parallel=ParallelConfig(dp=2), ddp=DDPConfig(shard_optimizer=True), offload=OffloadConfig(optimizer="file")
        ),
        "offload.optimizer = 'file' cannot be combined with ddp.shard_optimizer; use parallel.fsdp, or one of the two",
    ),
    "a missing offload directory": (
        lambda: OffloadConfig(directory="/nowhere/at/all"),
        "offload.directory = '/nowhere/at/all' is not a folder; create it, or name another",
    ),
    "an offload directory without files": (
        lambda: OffloadConfig(parameters="cpu", directory="/"),
        "offload.directory = '/' would stay empty; set offload.parameters or offload.optimizer to 'file', or leave it "
        "out",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_configuration_that_cannot_work_is_refused_with_a_remedy(case: str) -> None:
    make, sentence = REFUSED[case]
    with pytest.raises(ConfigError) as refused:
        make()
    assert str(refused.value) == sentence


def test_shards_over_cp_count_as_shards() -> None:
    Config(parallel=ParallelConfig(cp=4), fsdp=FSDPConfig(stage=3, node_ranks=2, quantize_weights=True))


def test_unit_blocks_work_with_dp_and_tp() -> None:
    Config(parallel=ParallelConfig(dp=2, tp=2), fsdp=FSDPConfig(unit_blocks=2))


def test_an_offload_directory_serves_parameters_or_optimizer_files() -> None:
    OffloadConfig(parameters="file", directory="/")
    OffloadConfig(optimizer="file", directory="/")
