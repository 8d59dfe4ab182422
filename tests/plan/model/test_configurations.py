"""Configurations of transformers as published, against the published numbers of parameters."""

from typing import Any

import pytest

from traincope.errors import UsageError
from traincope.plan.model.configurations import KINDS, shape_of_config

GEMMA = {"head_dim": 256, "vocab_size": 256_000}
PUBLISHED: dict[str, tuple[float, dict[str, Any]]] = {
    "Qwen3-30B-A3B": (
        30.53,
        {
            "model_type": "qwen3_moe",
            "hidden_size": 2048,
            "num_hidden_layers": 48,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "intermediate_size": 6144,
            "moe_intermediate_size": 768,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "vocab_size": 151_936,
            "tie_word_embeddings": False,
        },
    ),
    "Qwen1.5-MoE-A2.7B": (
        14.32,
        {
            "model_type": "qwen2_moe",
            "hidden_size": 2048,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "intermediate_size": 5632,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "decoder_sparse_step": 1,
            "vocab_size": 151_936,
            "tie_word_embeddings": False,
            "sliding_window": 32_768,
            "use_sliding_window": False,
        },
    ),
    "Phi-3-mini": (
        3.821,
        {
            "model_type": "phi3",
            "hidden_size": 3072,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "intermediate_size": 8192,
            "vocab_size": 32_064,
            "sliding_window": 2047,
            "tie_word_embeddings": False,
        },
    ),
    "gemma-7b": (
        8.538,
        {
            "model_type": "gemma",
            "hidden_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "intermediate_size": 24_576,
            **GEMMA,
        },
    ),
    "gemma-2-9b": (
        9.242,
        {
            "model_type": "gemma2",
            "hidden_size": 3584,
            "num_hidden_layers": 42,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "intermediate_size": 14_336,
            "sliding_window": 4096,
            **GEMMA,
        },
    ),
    "gemma-3-1b": (
        0.9999,
        {
            "model_type": "gemma3_text",
            "hidden_size": 1152,
            "num_hidden_layers": 26,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "intermediate_size": 6912,
            "head_dim": 256,
            "vocab_size": 262_144,
            "sliding_window": 512,
        },
    ),
    "OLMo-2-1124-7B": (
        7.2986,
        {
            "model_type": "olmo2",
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "intermediate_size": 11_008,
            "vocab_size": 100_352,
            "tie_word_embeddings": False,
        },
    ),
    "granite-3.1-8b-base": (
        8.17,
        {
            "model_type": "granite",
            "hidden_size": 4096,
            "num_hidden_layers": 40,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 12_800,
            "vocab_size": 49_155,
            "tie_word_embeddings": True,
        },
    ),
    "bloom": (
        176.25,
        {"model_type": "bloom", "n_embed": 14_336, "n_layer": 70, "num_attention_heads": 112, "vocab_size": 250_880},
    ),
}
"""Name -> parameters of all weights in 10^9 (its safetensors' index), and its config.json."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_configuration_has_the_published_parameters(name: str) -> None:
    billions, config = PUBLISHED[name]
    shape = shape_of_config(config, source=name, sequence=256)
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=5e-3)


@pytest.mark.parametrize(
    "kind", ["deepseek_v3", "gpt_oss", "mamba2", "nemotron_h", "gemma3", "llama4", "bert", "falcon", "qwen3_next"]
)
def test_models_with_other_matrices_are_refused_with_the_known_types(kind: str) -> None:
    """They have other matrices; published counts of Falcon differ."""
    with pytest.raises(UsageError, match=f"'{kind}' is not known; .*the known types are {', '.join(KINDS)}; or give"):
        shape_of_config({"model_type": kind}, source="config.json", sequence=256)


@pytest.mark.parametrize(
    ("kind", "meant"),
    [
        ("qwen3moe", "did you mean 'qwen3_moe'"),
        ("mamba2", "the known types"),
        *[(other, "the known types") for other in ("gpt_oss", "llama4", "gemma3", "qwen3_next")],
    ],
)
def test_only_a_near_type_is_meant(kind: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"is not known; {meant}"):
        shape_of_config({"model_type": kind}, source="config.json", sequence=256)


@pytest.mark.parametrize(
    "wrong", [{"mlp_only_layers": 7}, {"mlp_only_layers": ["1"]}, {"decoder_sparse_step": 0}], ids=str
)
def test_places_of_experts_of_a_wrong_kind_are_refused(wrong: dict[str, object]) -> None:
    _, config = PUBLISHED["Qwen3-30B-A3B"]
    with pytest.raises(UsageError, match=next(iter(wrong))):
        shape_of_config(config | wrong, source="config.json", sequence=256)


def test_experts_are_where_the_configuration_says() -> None:
    _, config = PUBLISHED["Qwen3-30B-A3B"]
    sparse = config | {"num_hidden_layers": 8, "decoder_sparse_step": 2, "mlp_only_layers": [7]}
    shape = shape_of_config(sparse, source="config.json", sequence=256)
    assert [shape.num_routed(range(block, block + 1)) for block in range(8)] == [0, 1, 0, 1, 0, 1, 0, 0]


def test_windows_shorter_than_the_sequence_are_refused_with_the_remedies() -> None:
    _, config = PUBLISHED["gemma-2-9b"]
    with pytest.raises(
        UsageError, match=r"windows of 4096 tokens .*; give --seq 4096 or less, or its shapes in a \.toml"
    ):
        shape_of_config(config, source="config.json", sequence=4097)
