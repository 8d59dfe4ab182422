"""Skipped steps: what is judged bad, and that a training with a skipped step is one without that update, to the bit."""

import math
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from tests.distributed.checkpoint.interrupted import digest
from traincope.engine.config import Config, DataConfig, ModelConfig, OptimizerConfig, StabilityConfig, TrainConfig
from traincope.engine.optimizer.bad_steps import MIN_LOSSES, BadStep, BadSteps
from traincope.engine.trainer import Trainer

STEPS = 40
BOTH = StabilityConfig(not_finite="skip", spike="skip")


def small(directory: Path, stability: StabilityConfig) -> Config:
    text = directory / "text"
    text.write_text("\n".join(f"{number} squared is {number * number}" for number in range(200)))
    return Config(
        model=ModelConfig(layers=1, hidden=16, heads=2, kv_heads=1, ffn=16, sequence=16, dropout=0.1),
        data=DataConfig(path=str(text)),
        train=TrainConfig(steps=STEPS, batch=4, log_every=10, evaluation_batches=1),
        optimizer=OptimizerConfig(clip_norm=1.0, warmup=5),
        stability=stability,
    )


def trained(config: Config, *, bad: int, factor: float = 1.0) -> tuple[str, dict[int, str]]:
    """Train, with the loss and the gradients of step `bad` times `factor`. Returns state and skipped steps."""
    trainer = Trainer(config, device=torch.device("cpu"))
    train, skipped = trainer._runner.train, {}

    def spoilt(batch: Tensor) -> Tensor:
        loss = train(batch)
        if trainer.done + 1 != bad:
            return loss
        for parameter in trainer.parameters.values():
            assert parameter.grad is not None
            parameter.grad.mul_(factor)
        return loss * factor

    with patch.object(trainer._runner, "train", spoilt):
        for result in trainer.steps():
            if result.skipped is not None:
                skipped[result.step] = result.skipped
    return digest(trainer), skipped


def without_update(config: Config, *, bad: int) -> str:
    """Train, but leave out the update of one step."""
    trainer = Trainer(config, device=torch.device("cpu"))
    step = trainer.optimizer.step
    with patch.object(trainer.optimizer, "step", lambda: None if trainer.done + 1 == bad else step()):
        for _ in trainer.steps():
            pass
    return digest(trainer)


@pytest.mark.parametrize(
    ("bad", "factor", "reason"),
    [(1, math.nan, "the loss is NaN"), (3, math.inf, "the loss is infinite"), (36, 50.0, "the loss jumps from ")],
)
def test_a_skipped_step_is_one_without_its_update_to_the_bit(
    tmp_path: Path, bad: int, factor: float, reason: str
) -> None:
    state, skipped = trained(small(tmp_path, BOTH), bad=bad, factor=factor)
    assert list(skipped) == [bad]
    assert skipped[bad].startswith(reason)
    recorded = small(tmp_path, StabilityConfig())
    assert state == without_update(recorded, bad=bad)
    assert state != trained(recorded, bad=bad)[0]


def test_a_policy_without_a_bad_step_changes_nothing(tmp_path: Path) -> None:
    assert trained(small(tmp_path, BOTH), bad=0) == trained(small(tmp_path, StabilityConfig()), bad=0)


def test_record_skips_nothing(tmp_path: Path) -> None:
    assert trained(small(tmp_path, StabilityConfig()), bad=3, factor=math.nan)[1] == {}


def test_each_policy_judges_only_its_kind() -> None:
    only_finite, only_spikes = BadSteps(StabilityConfig(not_finite="skip")), BadSteps(StabilityConfig(spike="rollback"))
    for number in range(MIN_LOSSES):
        for steps in (only_finite, only_spikes):
            assert steps.judge(loss=3.0 + 0.01 * (number % 5), grad_norm=1.0) is None
    assert only_finite.judge(loss=90.0, grad_norm=1.0) is None
    assert only_finite.judge(loss=3.0, grad_norm=math.nan) == BadStep(why="the gradient norm is NaN", rolls_back=False)
    assert only_spikes.judge(loss=math.nan, grad_norm=math.nan) is None
    spike = BadStep(why="the loss jumps from 3.02 to 90", rolls_back=True)
    assert only_spikes.judge(loss=90.0, grad_norm=1.0) == spike
    assert only_spikes.judge(loss=90.0, grad_norm=1.0) is not None, "a skipped loss is not a usual one"
    assert only_spikes.judge(loss=3.2, grad_norm=1.0) is None, "it rises by less than a tenth"


def test_few_or_constant_losses_have_no_spikes() -> None:
    few, constant = BadSteps(BOTH), BadSteps(BOTH)
    for number in range(MIN_LOSSES - 1):
        assert few.judge(loss=3.0 + 0.01 * (number % 5), grad_norm=1.0) is None
    assert few.judge(loss=90.0, grad_norm=1.0) is None
    for _ in range(2 * MIN_LOSSES):
        assert constant.judge(loss=3.0, grad_norm=1.0) is None
    assert constant.judge(loss=90.0, grad_norm=1.0) is None
