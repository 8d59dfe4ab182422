"""Trainings of the engine in several layouts, on as many cores as ranks, or with sleeps as work where ranks are more.

A sleeping block takes a time per sequence in forward and twice that in backward, divided over the ranks that share it,
as its FLOPs are. Everything besides, from embedding to messages, is real.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

import traincope
from traincope.cli.launch.worker import settings
from traincope.engine.config import Config, DataConfig, ModelConfig, ParallelConfig, TrainConfig
from traincope.engine.model.model import Block
from traincope.engine.trainer import Trainer

TEXT = "One sentence after the other. " * 4_000
STEPS = 7
COMPUTED = ModelConfig(layers=8, hidden=384, heads=8, kv_heads=8, ffn=1024, sequence=256, vocabulary=264)
"""Large enough that a step is products, and not Python."""
SLEPT = ModelConfig(layers=8, hidden=32, heads=4, kv_heads=4, ffn=512, sequence=64, vocabulary=264)
"""Its logits, which do not sleep, are 2 % of its FLOPs."""
SECONDS_PER_SEQUENCE = 0.02
"""Forward of a sleeping block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A training without its text."""

    model: ModelConfig
    batch: int
    parallel: ParallelConfig
    recompute: str = "none"
    sleeps: bool = False

    @property
    def ranks(self) -> int:
        return self.parallel.world_size

    def config(self, text: str) -> Config:
        train = TrainConfig(steps=STEPS, batch=self.batch, log_every=100, recompute=self.recompute)  # type: ignore[arg-type]
        return Config(model=self.model, data=DataConfig(path=text, held_out=0.2), parallel=self.parallel, train=train)


def _computed(recompute: str = "none", **parallel: Any) -> Training:
    return Training(model=COMPUTED, batch=8, parallel=ParallelConfig(**parallel), recompute=recompute)


def slept(**parallel: Any) -> Training:
    return Training(model=SLEPT, batch=16, parallel=ParallelConfig(**parallel), sleeps=True)


MEASURED = MappingProxyType({2: _computed(fsdp=2), 4: slept(fsdp=4)})
"""Ranks -> the training that shows the machine's rates. On a CPU FSDP waits for its messages, so their times contain no
competition with products for cores, as DDP's would."""
PREDICTED = MappingProxyType(
    {
        "dp 2": _computed(dp=2),
        "tp 2": _computed(tp=2),
        "cp 2, ring": _computed(cp=2),
        "cp 2, ulysses": _computed(cp=2, cp_method="ulysses"),
        "pp 2": _computed(pp=2, microbatches=4),
        "dp 2, full recomputation": _computed("full", dp=2),
        "pp 4": slept(pp=4, microbatches=8),
        "pp 4, interleaved": slept(pp=4, microbatches=8, virtual=2),
        "dp 2 x pp 2": slept(dp=2, pp=2, microbatches=4),
        "dp 2 x tp 2": slept(dp=2, tp=2),
        "tp 2 x pp 2": slept(tp=2, pp=2, microbatches=4),
    }
)
"""Name -> a training whose step is predicted. Those on four ranks sleep."""


class _Sleep(torch.autograd.Function):
    """Sleep in forward, and twice as long in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        time.sleep(2 * ctx.seconds)
        return gradient, None


def train(training: Training, text: str, out: str) -> None:
    """Train with a record of every step. Runs on each rank."""
    config = training.config(text)
    with traincope.run(out, budget=None, agent=False) as run:
        run.describe(**settings(config))
        trainer = Trainer(config, device=torch.device("cpu"))
        if training.sleeps:
            for module in trainer.modules.values():
                for block in (each for each in module.modules() if isinstance(each, Block)):
                    block.register_forward_pre_hook(_sleeping(config))
        for _ in trainer.steps():
            run.step()


def _sleeping(config: Config) -> Callable[[nn.Module, tuple[Any, ...]], tuple[Any, ...]]:
    seconds = SECONDS_PER_SEQUENCE / (config.parallel.tp * config.parallel.cp)

    def sleep(_module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        x, *others = inputs
        return (_Sleep.apply(x, seconds * x.shape[0]), *others)

    return sleep
