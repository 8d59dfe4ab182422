"""What one rank of `traincope train` tells the recorder beside its times."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from traincope.cli.worker import expert_values, settings
from traincope.engine.config import Config, DataConfig, ExpertsConfig, ModelConfig, TrainConfig
from traincope.engine.trainer import Trainer

MODEL = ModelConfig(layers=2, hidden=32, heads=4, kv_heads=2, ffn=80, sequence=16)
EXPERTS = ExpertsConfig(number=4, top_k=2, ffn=24, shared=True)
BATCH = 4
TOKENS = BATCH * MODEL.sequence


def test_the_models_flops_are_told_by_tokens_and_squared_lengths() -> None:
    """A block has 32 x (32 + 16 + 16 + 32) around its attention and 3 x 32 x 80; logits 32 x 257."""
    told = settings(Config(model=MODEL, train=TrainConfig(batch=BATCH)))
    assert told["flops_per_token"] == 6 * (2 * (32 * 96 + 3 * 32 * 80) + 32 * 257)
    assert told["flops_per_squared_length"] == 12 * 2 * 32
    assert (told["tokens_per_step"], told["squared_lengths_per_step"]) == (TOKENS, BATCH * 16 * 16)
    assert (told["flops_per_routed_token"], told["routed_tokens_per_step"]) == (0, 0)
    assert told["flops_dtype"] == "float32"


def test_an_expert_is_told_by_the_token_that_passes_it() -> None:
    """A router of 32 x 4 and a shared feed-forward of the model's width meet every token."""
    told = settings(Config(model=MODEL, experts=EXPERTS, train=TrainConfig(batch=BATCH, precision="bf16")))
    assert told["flops_per_token"] == 6 * (2 * (32 * 96 + 32 * 4 + 3 * 32 * 80) + 32 * 257)
    assert (told["flops_per_routed_token"], told["routed_tokens_per_step"]) == (6 * 3 * 32 * 24, TOKENS * 2 * 2)
    assert told["flops_dtype"] == "bfloat16"


def test_what_a_capacity_drops_is_not_told_before_it_is_known() -> None:
    capped = replace(EXPERTS, capacity_factor=1.0)
    assert settings(Config(model=MODEL, experts=capped))["routed_tokens_per_step"] is None


@pytest.mark.parametrize("every", [1, 2])
def test_what_experts_got_is_of_one_step_however_seldom_it_is_logged(tmp_path: Path, every: int) -> None:
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
