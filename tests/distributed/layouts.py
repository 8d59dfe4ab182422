"""Small trainings that run on the ranks of a pool, and in the test's process for comparison."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed.tensor import DTensor

from traincope.engine.config import Config, DataConfig, ModelConfig, OptimizerConfig, ParallelConfig, TrainConfig
from traincope.engine.trainer import Trainer

STEPS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Results of a training on one rank."""

    losses: list[float]
    grad_norms: list[float]
    held_out: float
    parameters: dict[str, NDArray[np.float32]]
    """Final whole parameters of this rank's layers, by name."""


def small_config(text: str, parallel: ParallelConfig, *, layers: int = 4, **train: object) -> Config:
    """A model of few layers with gradients that are clipped in each step (their norm is about 1.5 at first)."""
    return Config(
        model=ModelConfig(layers=layers, hidden=32, heads=4, kv_heads=2, ffn=80, sequence=16),
        data=DataConfig(path=text, held_out=0.2),
        parallel=parallel,
        train=replace(TrainConfig(steps=STEPS, batch=16, evaluation_batches=2), **train),  # type: ignore[arg-type]
        optimizer=OptimizerConfig(lr=3e-3, clip_norm=0.25, warmup=2),
    )


def train(config: Config) -> Outcome:
    """Train to the end and evaluate. Runs on each rank."""
    trainer = Trainer(config, device=torch.device("cpu"))
    losses, grad_norms = [], []
    for result in trainer.steps():
        assert result.loss is not None
        assert result.grad_norm is not None
        losses.append(result.loss)
        grad_norms.append(result.grad_norm)
    parameters = {
        name.removeprefix("module."): whole(parameter).detach().numpy().copy()
        for module in trainer.modules.values()
        for name, parameter in module.named_parameters()
    }
    return Outcome(losses=losses, grad_norms=grad_norms, held_out=trainer.evaluate(), parameters=parameters)


def whole(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
