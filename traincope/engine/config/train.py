"""The tables `[train]`, `[scaling]` and `[optimizer]`: the loop, its scales of fp16 and fp8, and its optimizer."""

import math
from dataclasses import dataclass, fields
from typing import Literal

from traincope.engine.config.checks import require, require_not_negative, require_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """The training loop."""

    steps: int = 30
    """Optimizer steps."""
    batch: int = 32
    """Sequences of each optimizer step, over all ranks."""
    accumulation: int = 1
    """Backward passes whose gradients are summed into one step."""
    precision: Literal["fp32", "bf16", "fp16", "fp8", "fp8_block"] = "fp32"
    """Type of the matrix products. Weights and their updates stay fp32. fp16 scales the loss and skips steps that
    overflow. fp8 multiplies the blocks' linear layers and experts in fp8 and everything besides as bf16 does, with one
    scale per tensor; fp8_block does so with one scale per 128 numbers, or 128 x 128 weights."""
    recompute: Literal["none", "pointwise", "selective", "full"] = "none"
    """Activations that backward computes again instead of keeping: none; all but matrix products and attention
    (pointwise); attention's scores, softmax and mixing (selective); whole blocks (full)."""
    recompute_layers: int | None = None
    """Layers of each stage that compute again, its first ones (Megatron-LM's method `block`). None: all."""
    seed: int = 0
    """Seed of the starting weights and of the data order."""
    log_every: int = 1
    """Steps from one reading of loss and gradient norm to the next. Each reading costs one small reduction."""
    evaluate_every: int | None = None
    """Steps from one evaluation on held-out text to the next. None: never."""
    evaluation_batches: int = 4
    """Batches of each evaluation."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "accumulation", "log_every", "evaluation_batches"):
            require_positive(getattr(self, name), key=f"train.{name}")
        if self.recompute_layers is not None:
            require_positive(self.recompute_layers, key="train.recompute_layers")
            require(
                self.recompute != "none",
                f"train.recompute_layers = {self.recompute_layers} has no effect with train.recompute = 'none'; set "
                "recompute, or leave it out",
            )
        if self.evaluate_every is not None:
            require_positive(self.evaluate_every, key="train.evaluate_every")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingConfig:
    """Scales that keep numbers within the range of fp16 and fp8."""

    initial: float = 65536.0
    """Scale of the loss in the first step, a power of two, so that scaling rounds nothing. For fp16."""
    growth_interval: int = 2000
    """Steps without an overflow after which the loss's scale doubles. An overflow halves it. For fp16."""
    history: int = 16
    """Steps whose largest numbers decide the scale of a tensor. For fp8."""

    def __post_init__(self) -> None:
        for name in ("initial", "growth_interval", "history"):
            require_positive(getattr(self, name), key=f"scaling.{name}")
        require(
            math.frexp(self.initial)[0] == 0.5,
            f"scaling.initial = {self.initial} is not a power of two; use one, for example 65536",
        )

    def check(self, precision: str) -> None:
        """Raise ConfigError for a scale that the precision does not have."""
        users = {"initial": "fp16", "growth_interval": "fp16", "history": "fp8"}
        for field in fields(self):
            value = getattr(self, field.name)
            require(
                value == field.default or precision == users[field.name],
                f"scaling.{field.name} = {value} has no effect with train.precision = {precision!r}; leave it out, or "
                f"set precision = {users[field.name]!r}",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """AdamW and its learning rate."""

    lr: float = 1e-3
    """Learning rate after the warm-up."""
    beta1: float = 0.9
    """Decay of the gradient's running mean."""
    beta2: float = 0.95
    """Decay of the squared gradient's running mean."""
    weight_decay: float = 0.1
    """Decoupled weight decay of matrices. Norms do not decay."""
    clip_norm: float | None = None
    """Largest gradient norm, over all parameters of all ranks. None: no clipping."""
    warmup: int = 0
    """Steps over which the learning rate rises linearly to `lr`."""

    def __post_init__(self) -> None:
        require_positive(self.lr, key="optimizer.lr")
        for name in ("beta1", "beta2"):
            value = getattr(self, name)
            require(0.0 <= value < 1.0, f"optimizer.{name} is {value}; it must be at least 0 and below 1")
        require_not_negative(self.weight_decay, key="optimizer.weight_decay")
        if self.clip_norm is not None:
            require_positive(self.clip_norm, key="optimizer.clip_norm", remedy="leave it out to switch clipping off")
        require_not_negative(self.warmup, key="optimizer.warmup")
