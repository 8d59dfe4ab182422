"""The training loop in one process. tests/distributed compares each layout with it."""

from pathlib import Path

import pytest
import torch

from traincope.engine.config import Config, DataConfig, ModelConfig, OptimizerConfig, ParallelConfig, TrainConfig
from traincope.engine.trainer import StepResult, Trainer
from traincope.errors import ConfigError

CPU = torch.device("cpu")


@pytest.fixture
def config(tmp_path: Path) -> Config:
    text = tmp_path / "abc.txt"
    text.write_text("abcdefgh" * 200)
    return Config(
        model=ModelConfig(layers=2, hidden=32, heads=2, kv_heads=1, ffn=64, sequence=16),
        data=DataConfig(path=str(text)),
        train=TrainConfig(steps=30, batch=8, log_every=10, evaluation_batches=1),
        optimizer=OptimizerConfig(lr=1e-2, clip_norm=1.0, warmup=3),
    )


def test_a_repetitive_text_is_learnt(config: Config) -> None:
    trainer = Trainer(config, device=CPU)
    before = trainer.evaluate()
    results = list(trainer.steps())
    assert before == pytest.approx(5.55, abs=0.2)
    assert results[-1].loss is not None
    assert results[-1].loss < 0.5
    assert trainer.evaluate() < 0.5


def test_loss_and_norm_are_read_only_in_logged_steps(config: Config) -> None:
    results = list(Trainer(config, device=CPU).steps())
    assert [result.step for result in results] == list(range(1, 31))
    assert [result.step for result in results if result.loss is not None] == [10, 20, 30]
    assert [result.step for result in results if result.grad_norm is not None] == [10, 20, 30]
    assert {result.tokens for result in results} == {8 * 16}


def test_a_repeated_training_is_equal_to_the_bit(config: Config) -> None:
    def run() -> list[StepResult]:
        return list(Trainer(config, device=CPU).steps())

    assert run() == run()


def test_evaluation_between_steps_does_not_change_the_training(config: Config) -> None:
    trainer = Trainer(config, device=CPU)
    evaluated = []
    for result in trainer.steps():
        trainer.evaluate()
        evaluated.append(result)
    assert evaluated == list(Trainer(config, device=CPU).steps())


def test_a_layout_with_more_ranks_than_the_job_is_refused(config: Config) -> None:
    several = Config(model=config.model, data=config.data, parallel=ParallelConfig(fsdp=2), train=config.train)
    with pytest.raises(ConfigError) as refused:
        Trainer(several, device=CPU)
    assert str(refused.value) == (
        "fsdp 2 = 2 ranks, but there are 1; change a size in [parallel] or the number of ranks"
    )
