"""The tables `[ddp]`, `[fsdp]` and `[offload]`: replicas, shards, and where the model's state lies.

The stages are those of ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054). Stage 1 shards the optimizer state, stage 2
also gradients, stage 3 also parameters.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from traincope.engine.config.checks import require, require_positive
from traincope.engine.config.parallel import ParallelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class DDPConfig:
    """Replicas of the whole model: `parallel.dp` x `parallel.cp` of them."""

    shard_optimizer: bool = False
    """ZeRO stage 1: each replica keeps the optimizer state of some parameters, updates these, and sends them."""
    compression: Literal["none", "bf16", "fp16", "powersgd"] = "none"
    """Form in which gradients are sent. powersgd sends two thin factors of each matrix instead of the matrix."""
    powersgd_rank: int = 4
    """Width of the factors."""
    powersgd_start: int = 10
    """Backward passes that still send whole gradients, at least 2. The first gradients are too noisy to keep their
    factors."""
    bucket_mib: float = 25.0
    """Size of the gradient buckets that are reduced at once, in MiB."""

    def __post_init__(self) -> None:
        require_positive(self.powersgd_rank, key="ddp.powersgd_rank")
        require(self.powersgd_start >= 2, f"ddp.powersgd_start is {self.powersgd_start}; it must be at least 2")
        require_positive(self.bucket_mib, key="ddp.bucket_mib")
        for name, value in _changed_settings(self, "powersgd_rank", "powersgd_start"):
            require(
                self.compression == "powersgd",
                f"ddp.{name} = {value} works only with ddp.compression = 'powersgd'; set that, or leave it out",
            )

    def check(self, parallel: ParallelConfig) -> None:
        """Raise ConfigError if a setting needs replicas and the layout has none."""
        for name, value in _changed_settings(self, "shard_optimizer", "compression", "bucket_mib"):
            require(parallel.dp > 1, f"ddp.{name} = {value} needs parallel.dp > 1; without replicas leave it out")
            require(
                parallel.tp == 1,
                f"ddp.{name} = {value} needs whole parameters, but parallel.tp = {parallel.tp} splits them; leave one "
                "of the two out",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class FSDPConfig:
    """Shards of the model over `parallel.fsdp` x `parallel.cp` ranks."""

    stage: Literal[2, 3] = 3
    """ZeRO stage. Stage 3 frees gathered parameters after each use. Stage 2 keeps them until the last backward of a
    step, and reduces gradients after each backward. A pipeline has no stage 2: it keeps gathered parameters and
    reduces once per step."""
    reduce: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Type in which gradients travel and are summed over ranks. DDP has `ddp.compression` for this."""
    unit_blocks: int = 1
    """Blocks that are gathered together. If it is at least the number of blocks, the whole model is one unit."""
    prefetch: int | None = None
    """Units that are gathered ahead of the one that computes, in forward and backward. None: torch's choice (1 in
    backward)."""
    node_ranks: int | None = None
    """Ranks of a node (ZeRO++'s hpZ). Each node keeps a copy of the parameters from forward to backward, so that
    backward gathers within the node. None: no such copy."""
    quantize_weights: bool = False
    """ZeRO++'s qwZ: gather parameters as blocks of int8."""
    quantize_gradients: bool = False
    """ZeRO++'s qgZ: exchange gradients as blocks of int8 and sum them in fp32, instead of reduce-scatter."""
    quantization_block: int = 256
    """Numbers that share one scale."""

    def __post_init__(self) -> None:
        require_positive(self.unit_blocks, key="fsdp.unit_blocks")
        require_positive(self.quantization_block, key="fsdp.quantization_block")
        require(
            self.quantization_block % 4 == 0,
            f"fsdp.quantization_block = {self.quantization_block} is not a multiple of 4, the bytes of a "
            "scale; use a multiple of 4",
        )
        for name, value in _changed_settings(self, "quantization_block"):
            require(
                self.quantize_weights or self.quantize_gradients,
                f"fsdp.{name} = {value} works only with fsdp.quantize_weights or fsdp.quantize_gradients; set one of "
                "them, or leave it out",
            )
        if self.prefetch is not None:
            require_positive(self.prefetch, key="fsdp.prefetch")
        if self.node_ranks is not None:
            require_positive(self.node_ranks, key="fsdp.node_ranks")
            require(
                self.stage == 3,
                f"fsdp.node_ranks = {self.node_ranks} needs fsdp.stage = 3; stage 2 gathers nothing in backward",
            )

    def check(self, parallel: ParallelConfig) -> None:
        """Raise ConfigError if a setting needs shards that the layout does not have."""
        ranks = parallel.shards
        for name, value in _changed_settings(
            self, "stage", "prefetch", "node_ranks", "quantize_weights", "quantize_gradients", "reduce"
        ):
            require(ranks > 1, f"fsdp.{name} = {value} needs parallel.fsdp > 1; without shards leave it out")
        for name, value in _changed_settings(self, "unit_blocks"):
            # With tensor parallelism, replicas are reduced in these units too.
            require(
                ranks > 1 or (parallel.dp > 1 and parallel.tp > 1),
                f"fsdp.{name} = {value} needs parallel.fsdp > 1; without shards leave it out",
            )
        for name, value in _changed_settings(self, "stage", "prefetch"):
            require(
                parallel.pp == 1,
                f"fsdp.{name} = {value} has no effect with parallel.pp = {parallel.pp}: a pipeline gathers a whole "
                "stage at once and keeps it; leave it out",
            )
        if self.node_ranks is not None:
            require(
                1 < self.node_ranks < ranks and ranks % self.node_ranks == 0 and parallel.pp == 1,
                f"fsdp.node_ranks = {self.node_ranks} does not divide the {ranks} ranks of a shard group (pp = "
                f"{parallel.pp}) into several nodes; use a divisor between 1 and {ranks}, and no pipeline",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadConfig:
    """State that lies off the device (ZeRO-Infinity, Rajbhandari et al. 2021, arXiv:2104.07857)."""

    parameters: Literal["none", "cpu", "file"] = "none"
    """Place of FSDP's parameter shards. Gradients and optimizer state then lie in the CPU's memory."""
    optimizer: Literal["none", "cpu", "file"] = "none"
    """Place of AdamW's state. With `cpu` the update runs on the CPU too. With `file` the state passes through memory
    one block at a time."""
    directory: str | None = None
    """Folder of the files, on a fast local disk. The files vanish with the process. None: the system's temporary
    folder."""

    def __post_init__(self) -> None:
        require(
            self.directory is None or Path(self.directory).is_dir(),
            f"offload.directory = {self.directory!r} is not a folder; create it, or name another",
        )
        require(
            self.directory is None or "file" in (self.parameters, self.optimizer),
            f"offload.directory = {self.directory!r} would stay empty; set offload.parameters or offload.optimizer to "
            "'file', or leave it out",
        )

    def check(self, parallel: ParallelConfig, ddp: DDPConfig) -> None:
        """Raise ConfigError if the layout has nothing to offload."""
        require(
            self.parameters == "none" or parallel.shards > 1,
            f"offload.parameters = {self.parameters!r} needs parallel.fsdp > 1, because FSDP fetches them",
        )
        require(
            self.optimizer != "cpu" or self.parameters == "none",
            f"offload.optimizer = 'cpu' adds nothing to offload.parameters = {self.parameters!r}: the optimizer runs "
            "on the CPU already; leave it out",
        )
        require(
            self.optimizer == "none" or not ddp.shard_optimizer,
            f"offload.optimizer = {self.optimizer!r} cannot be combined with ddp.shard_optimizer; use parallel.fsdp, "
            "or one of the two",
        )


def _changed_settings(settings: DDPConfig | FSDPConfig, *names: str) -> Iterator[tuple[str, str]]:
    """Yield the named keys whose value differs from the default, with the value as TOML."""
    for field in fields(settings):
        value = getattr(settings, field.name)
        if field.name in names and value != field.default:
            yield field.name, _toml(value)


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)
