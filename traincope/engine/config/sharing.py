"""`[ddp]`, `[fsdp]` and `[offload]`: what replicas and shards exchange, in which form, and where the rest lies.

The stages are those of ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054): 1 shares the optimizer state, 2 gradients
too, 3 parameters too.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from traincope.engine.checks import positive, require
from traincope.engine.config.parallel import ParallelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class DDPConfig:
    """`[ddp]`: replicas of the whole model, `parallel.dp` x `parallel.cp` of them."""

    shard_optimizer: bool = False
    """ZeRO stage 1: each replica keeps the optimizer state of a part of the parameters, updates it, and sends it."""
    compression: Literal["none", "bf16", "fp16", "powersgd"] = "none"
    """Form in which gradients travel; powersgd sends two thin factors of each matrix instead of it."""
    powersgd_rank: int = 4
    """Width of those factors."""
    powersgd_start: int = 10
    """Backward passes whose gradients still travel whole, at least 2; the factors of noise are not worth keeping."""
    bucket_mib: float = 25.0
    """Gradients that are reduced at once."""

    def __post_init__(self) -> None:
        positive(self.powersgd_rank, key="ddp.powersgd_rank")
        require(self.powersgd_start >= 2, f"ddp.powersgd_start = {self.powersgd_start} must be at least 2")
        positive(self.bucket_mib, key="ddp.bucket_mib")
        for name, value in _given(self, "powersgd_rank", "powersgd_start"):
            require(
                self.compression == "powersgd",
                f"ddp.{name} = {value} is for ddp.compression = 'powersgd'; set that, or leave it out",
            )

    def check(self, parallel: ParallelConfig) -> None:
        """Raise ConfigError if a setting needs replicas that there are not."""
        for name, value in _given(self, "shard_optimizer", "compression", "bucket_mib"):
            require(parallel.dp > 1, f"ddp.{name} = {value} needs parallel.dp > 1; without replicas leave it out")
            require(
                parallel.tp == 1,
                f"ddp.{name} = {value} needs whole parameters, but parallel.tp = {parallel.tp} cuts them; leave one of "
                "the two out",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class FSDPConfig:
    """`[fsdp]`: shards of the model, over `parallel.fsdp` x `parallel.cp` ranks."""

    stage: Literal[2, 3] = 3
    """ZeRO stage. 3 frees gathered parameters after each use, 2 keeps them until the last backward of a step and
    reduces gradients after each. A pipeline does neither, and has no 2: it keeps them, and reduces once a step."""
    unit_blocks: int = 1
    """Blocks gathered as one; as many as the model has, and the whole of it is one unit."""
    prefetch: int | None = None
    """Units gathered ahead of the one that computes, in forward and backward; None: as torch does (1 in backward)."""
    node_ranks: int | None = None
    """Ranks of a node (ZeRO++'s hpZ): each node keeps a copy of the parameters from forward to backward, so that
    backward gathers within it; None: no such copy."""
    quantize_weights: bool = False
    """ZeRO++'s qwZ: parameters are gathered as blocks of int8."""
    quantize_gradients: bool = False
    """ZeRO++'s qgZ: gradients are exchanged as blocks of int8 and summed in fp32, instead of reduce-scattered."""
    quantization_block: int = 256
    """Numbers that share a scale."""

    def __post_init__(self) -> None:
        positive(self.unit_blocks, key="fsdp.unit_blocks")
        positive(self.quantization_block, key="fsdp.quantization_block")
        require(
            self.quantization_block % 4 == 0,
            f"fsdp.quantization_block = {self.quantization_block} is no multiple of 4, the bytes of a scale; "
            "make it one",
        )
        for name, value in _given(self, "quantization_block"):
            require(
                self.quantize_weights or self.quantize_gradients,
                f"fsdp.{name} = {value} is for fsdp.quantize_weights or fsdp.quantize_gradients; set one, or leave it "
                "out",
            )
        if self.prefetch is not None:
            positive(self.prefetch, key="fsdp.prefetch")
        if self.node_ranks is not None:
            positive(self.node_ranks, key="fsdp.node_ranks")
            require(
                self.stage == 3,
                f"fsdp.node_ranks = {self.node_ranks} needs fsdp.stage = 3; stage 2 gathers nothing in backward",
            )

    def check(self, parallel: ParallelConfig) -> None:
        """Raise ConfigError if a setting needs shards that there are not, or that are gathered otherwise."""
        ranks = parallel.shards
        for name, value in _given(self, "stage", "prefetch", "node_ranks", "quantize_weights", "quantize_gradients"):
            require(ranks > 1, f"fsdp.{name} = {value} needs parallel.fsdp > 1; without shards leave it out")
        for name, value in _given(self, "unit_blocks"):
            # Of what tensor parallelism cuts, replicas are reduced in these units too.
            require(
                ranks > 1 or (parallel.dp > 1 and parallel.tp > 1),
                f"fsdp.{name} = {value} needs parallel.fsdp > 1; without shards leave it out",
            )
        for name, value in _given(self, "stage", "prefetch"):
            require(
                parallel.pp == 1,
                f"fsdp.{name} = {value} does nothing with parallel.pp = {parallel.pp}, for a pipeline gathers all of a "
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
    """`[offload]`: what lies off the device (ZeRO-Infinity, Rajbhandari et al. 2021, arXiv:2104.07857)."""

    parameters: Literal["none", "cpu", "file"] = "none"
    """Where FSDP's shards of parameters lie, and with them gradients and optimizer state in the CPU's memory."""
    optimizer: Literal["none", "cpu", "file"] = "none"
    """Where AdamW's state lies; in the CPU's memory the update is there too, and from a file the state passes through
    memory one block at a time."""
    directory: str | None = None
    """Folder for those files, on a fast local disk; they vanish with the process. None: the system's temporary one."""

    def __post_init__(self) -> None:
        require(
            self.directory is None or Path(self.directory).is_dir(),
            f"offload.directory = {self.directory!r} is no folder; make it, or name another",
        )
        require(
            self.directory is None or "file" in (self.parameters, self.optimizer),
            f"offload.directory = {self.directory!r} would stay empty; set offload.parameters or offload.optimizer to "
            "'file', or leave it out",
        )

    def check(self, parallel: ParallelConfig, ddp: DDPConfig) -> None:
        """Raise ConfigError if there is nothing that could lie elsewhere."""
        require(
            self.parameters == "none" or parallel.shards > 1,
            f"offload.parameters = {self.parameters!r} needs parallel.fsdp > 1: it is FSDP that fetches them",
        )
        require(
            self.optimizer != "cpu" or self.parameters == "none",
            f"offload.optimizer = 'cpu' adds nothing to offload.parameters = {self.parameters!r}, with which the "
            "optimizer runs on the CPU already; leave it out",
        )
        require(
            self.optimizer == "none" or not ddp.shard_optimizer,
            f"offload.optimizer = {self.optimizer!r} cannot be combined with ddp.shard_optimizer; use parallel.fsdp, "
            "or one of the two",
        )


def _given(settings: DDPConfig | FSDPConfig, *names: str) -> Iterator[tuple[str, str]]:
    """Those of the keys that have another value than by themselves, with it as a file has it."""
    for field in fields(settings):
        value = getattr(settings, field.name)
        if field.name in names and value != field.default:
            yield field.name, _toml(value)


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)
