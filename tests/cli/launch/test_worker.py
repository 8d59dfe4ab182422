"""Settings and values that a rank of `traincope train` gives to the recorder."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from traincope.cli.launch.worker import document_values, expert_values, settings
from traincope.engine.config import Config, DataConfig, ExpertsConfig, ModelConfig, ParallelConfig, TrainConfig
from traincope.engine.trainer import Trainer

MODEL = ModelConfig(layers=2, hidden=32, heads=4, kv_heads=2, ffn=80, sequence=16)
EXPERTS = ExpertsConfig(number=4, top_k=2, ffn=24, shared=True)
BATCH = 4
TOKENS = BATCH * MODEL.sequence


def test_model_flops_are_declared_per_token_and_squared_length() -> None:
    """A block has 32 x (32 + 16 + 16 + 32) around its attention and 3 x 32 x 80; logits 32 x 257."""
    described = settings(Config(model=MODEL, train=TrainConfig(batch=BATCH)))
    assert described["flops_per_token"] == 6 * (2 * (32 * 96 + 3 * 32 * 80) + 32 * 257)
    assert described["flops_per_squared_length"] == 12 * 2 * 32
    assert (described["tokens_per_step"], described["squared_lengths_per_step"]) == (TOKENS, BATCH * 16 * 16)
    assert (described["flops_per_routed_token"], described["routed_tokens_per_step"]) == (0, 0)
    assert described["flops_dtype"] == "float32"


def test_flops_of_experts_are_declared_per_routed_token() -> None:
    """A router of 32 x 4 and a shared feed-forward of the model's width meet every token."""
    described = settings(Config(model=MODEL, experts=EXPERTS, train=TrainConfig(batch=BATCH, precision="bf16")))
    assert described["flops_per_token"] == 6 * (2 * (32 * 96 + 32 * 4 + 3 * 32 * 80) + 32 * 257)
    assert (described["flops_per_routed_token"], described["routed_tokens_per_step"]) == (
        6 * 3 * 32 * 24,
        TOKENS * 2 * 2,
    )
    assert described["flops_dtype"] == "bfloat16"


def test_routed_tokens_are_not_declared_if_a_capacity_may_drop_them() -> None:
    capped = replace(EXPERTS, capacity_factor=1.0)
    assert settings(Config(model=MODEL, experts=capped))["routed_tokens_per_step"] is None


def test_squared_lengths_of_documents_are_logged_per_step_and_split_over_ranks(tmp_path: Path) -> None:
    """Eight bytes a document, two in a sequence of 16: a batch of 4 has 8, of 64 each; ranks of `tp` have the same."""
    (tmp_path / "text").write_text("abcdefg\n" * 400)
    data = DataConfig(path=str(tmp_path / "text"), end_of_document=ord("\n"))
    config = Config(model=MODEL, data=data, train=TrainConfig(steps=1, batch=BATCH))
    assert settings(config)["squared_lengths_per_step"] is None
    (result,) = Trainer(config, device=torch.device("cpu")).steps()
    assert document_values(config, result) == {"step_squared_lengths": 8 * 64}
    on_four = replace(config, parallel=ParallelConfig(fsdp=2, tp=2))
    assert document_values(on_four, replace(result, squared_lengths=4 * 64)) == {"step_squared_lengths": 2 * 64}


def test_squared_lengths_of_whole_sequences_are_declared_once(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("abcdefg\n" * 400)
    config = Config(model=MODEL, data=DataConfig(path=str(tmp_path / "text")), train=TrainConfig(steps=1, batch=BATCH))
    (result,) = Trainer(config, device=torch.device("cpu")).steps()
    assert result.squared_lengths == settings(config)["squared_lengths_per_step"] == BATCH * 16 * 16
    assert document_values(config, result) == {}


@pytest.mark.parametrize("every", [1, 2])
def test_expert_loads_are_means_per_step(tmp_path: Path, every: int) -> None:
    (tmp_path / "text").write_text("abcdefgh" * 400)
    config = Config(
        model=MODEL,
        experts=EXPERTS,
        data=DataConfig(path=str(tmp_path / "text")),
        train=TrainConfig(steps=4, batch=BATCH, log_every=every),
    )
    trainer = Trainer(config, device=torch.device("cpu"))
    logged = [expert_values(trainer, config, result) for result in trainer.steps()]
    rows = [sum(value for name, value in values.items() if "tokens" in name) for values in logged if values]
    assert rows == [TOKENS * 2 * 2] * (4 // every)
