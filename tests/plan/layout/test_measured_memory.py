"""Planned memory of a rank, and the bytes that a training of the engine takes from torch's allocator on a CPU.

The formulas assume modules that fuse what can be fused, and leave out most temporary buffers (`memory.LEFT_OUT`). The
engine's modules on a CPU are not fused, so they hold more activations. The formulas add all gradients to a block that
is computed again, although the engine has none yet when it computes the last block again, so they can give 1 % more.
The states alone are exact: tests/distributed/recorded/test_memory.py. `plan.allocator` counts unfused modules and
buffers: tests/plan/allocator.
"""

from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from traincope.engine.config import Config, DataConfig, ModelConfig, TrainConfig
from traincope.engine.model.shape import transformer
from traincope.engine.trainer import Trainer
from traincope.plan.layout.activations import ActivationPolicy
from traincope.plan.layout.layout import Layout
from traincope.plan.layout.memory import memory
from traincope.plan.model.flops import Recompute
from traincope.plan.model.precision import Precision

FLOAT = 4
MODELS = {
    "mostly states": (ModelConfig(layers=4, hidden=512, ffn=1408, kv_heads=4), 4, "full", 0.0),
    "mostly activations": (ModelConfig(layers=4, hidden=256, heads=4, kv_heads=2, sequence=256), 8, "none", 0.22),
}
"""Model, sequences per step, recomputation, and the largest share of the measured bytes that the plan leaves out."""


@pytest.mark.sweep
@pytest.mark.parametrize("name", MODELS)
def test_the_plan_holds_little_more_than_the_allocated_bytes(name: str, tmp_path: Path) -> None:
    model, batch, recompute, left_out = MODELS[name]
    text = tmp_path / "text.txt"
    text.write_text("One sentence after the other. " * 4000)
    config = Config(
        model=model,
        data=DataConfig(path=str(text), held_out=0.2),
        train=TrainConfig(steps=4, batch=batch, recompute=recompute),  # type: ignore[arg-type]
    )
    planned = memory(
        transformer(config),
        layout=Layout(micro_batch=batch),
        precision=Precision(weights="fp32", gradients="fp32", activations="fp32"),
        policy=ActivationPolicy(flash=True, dropout=False, dtype="fp32", recompute=Recompute(recompute)),
    )
    measured = peak_bytes(config)
    assert (1 - left_out) * measured <= planned[0].total <= 1.01 * measured


def peak_bytes(config: Config) -> int:
    """Largest number of bytes that tensors hold in the third step."""
    trainer = Trainer(config, device=torch.device("cpu"))
    steps = trainer.steps()
    next(steps)
    next(steps)
    parameters = [each for module in trainer.modules.values() for each in module.parameters()]
    # Weights and the two numbers of AdamW; gradients are gone between steps.
    assert all(each.grad is None for each in parameters)
    held = 3 * FLOAT * sum(each.numel() for each in parameters)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        next(steps)
    events = profiled.profiler.kineto_results.events()
    largest = now = held
    for event in events:
        if event.name() == "[memory]":
            now += event.nbytes()
            largest = max(largest, now)
    return largest
