"""`[train]` and `[optimizer]`: the loop and its steps."""

from dataclasses import dataclass
from typing import Literal

from traincope.engine.checks import not_negative, positive, require


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """`[train]`: the loop."""

    steps: int = 30
    """Optimizer steps."""
    batch: int = 32
    """Sequences of one optimizer step, over all ranks."""
    accumulation: int = 1
    """Backward passes whose gradients are summed into one step."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Type of the matrix products; weights and their updates stay fp32."""
    recompute: Literal["none", "pointwise", "selective", "full"] = "none"
    """What backward computes again instead of keeping it: nothing; all but matrix products and attention; attention's
    scores, softmax and mixing; whole blocks."""
    seed: int = 0
    """Decides the starting weights and the order of the data."""
    log_every: int = 1
    """Steps between two looks at loss and gradient norm (each costs one small reduction)."""
    evaluate_every: int | None = None
    """Steps between two evaluations on held-out text; None: never."""
    evaluation_batches: int = 4
    """Batches of one evaluation."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "accumulation", "log_every", "evaluation_batches"):
            positive(getattr(self, name), key=f"train.{name}")
        if self.evaluate_every is not None:
            positive(self.evaluate_every, key="train.evaluate_every")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """`[optimizer]`: AdamW."""

    lr: float = 1e-3
    """Learning rate after the warm-up."""
    beta1: float = 0.9
    """Decay of the gradient's running mean."""
    beta2: float = 0.95
    """Decay of the squared gradient's running mean."""
    weight_decay: float = 0.1
    """Decoupled weight decay of matrices; norms have none."""
    clip_norm: float | None = None
    """Largest gradient norm, over all parameters of all ranks; None: no clipping."""
    warmup: int = 0
    """Steps in which the learning rate rises to `lr` in equal parts."""

    def __post_init__(self) -> None:
        positive(self.lr, key="optimizer.lr")
        for name in ("beta1", "beta2"):
            value = getattr(self, name)
            require(0.0 <= value < 1.0, f"optimizer.{name} = {value} must be at least 0 and below 1")
        not_negative(self.weight_decay, key="optimizer.weight_decay")
        if self.clip_norm is not None:
            positive(self.clip_norm, key="optimizer.clip_norm", otherwise="for no clipping leave it out")
        not_negative(self.warmup, key="optimizer.warmup")
