"""Configurations of transformers as published, against the published numbers of parameters."""

from typing import Any

import pytest

from traincope.errors import UsageError
from traincope.plan.model.configurations import KINDS, shape_of_config
from traincope.plan.model.flops import attention_forward

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
    "DeepSeek-V3": (
        671.03,
        {
            "model_type": "deepseek_v3",
            "hidden_size": 7168,
            "num_hidden_layers": 61,
            "num_attention_heads": 128,
            "num_key_value_heads": 128,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "intermediate_size": 18_432,
            "moe_intermediate_size": 2048,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "first_k_dense_replace": 3,
            "moe_layer_freq": 1,
            "num_nextn_predict_layers": 1,
            "vocab_size": 129_280,
            "tie_word_embeddings": False,
        },
    ),
    "DeepSeek-V2-Lite": (
        15.706,
        {
            "model_type": "deepseek_v2",
            "hidden_size": 2048,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "q_lora_rank": None,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "intermediate_size": 10_944,
            "moe_intermediate_size": 1408,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "num_experts_per_tok": 6,
            "first_k_dense_replace": 1,
            "moe_layer_freq": 1,
            "vocab_size": 102_400,
            "tie_word_embeddings": False,
        },
    ),
    "Kimi-K2": (
        1026.41,
        {
            "model_type": "kimi_k2",
            "hidden_size": 7168,
            "num_hidden_layers": 61,
            "num_attention_heads": 64,
            "num_key_value_heads": 64,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "intermediate_size": 18_432,
            "moe_intermediate_size": 2048,
            "n_routed_experts": 384,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "first_k_dense_replace": 1,
            "moe_layer_freq": 1,
            "vocab_size": 163_840,
            "tie_word_embeddings": False,
        },
    ),
    "gpt-oss-20b": (
        20.91,
        {
            "model_type": "gpt_oss",
            "hidden_size": 2880,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "intermediate_size": 2880,
            "vocab_size": 201_088,
            "tie_word_embeddings": False,
            "sliding_window": 128,
            "num_hidden_layers": 24,
            "num_local_experts": 32,
            "num_experts_per_tok": 4,
        },
    ),
    "gpt-oss-120b": (
        116.83,
        {
            "model_type": "gpt_oss",
            "hidden_size": 2880,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "intermediate_size": 2880,
            "vocab_size": 201_088,
            "tie_word_embeddings": False,
            "sliding_window": 128,
            "num_hidden_layers": 36,
            "num_local_experts": 128,
            "experts_per_token": 4,
        },
    ),
    "falcon-7b": (
        6.9217,
        {
            "model_type": "falcon",
            "hidden_size": 4544,
            "num_hidden_layers": 32,
            "num_attention_heads": 71,
            "multi_query": True,
            "new_decoder_architecture": False,
            "vocab_size": 65_024,
        },
    ),
    "falcon-40b": (
        41.303,
        {
            "model_type": "falcon",
            "hidden_size": 8192,
            "num_hidden_layers": 60,
            "num_attention_heads": 128,
            "num_kv_heads": 8,
            "new_decoder_architecture": True,
            "vocab_size": 65_024,
        },
    ),
    "gpt2": (
        0.12444,
        {
            "model_type": "gpt2",
            "n_embd": 768,
            "n_layer": 12,
            "n_head": 12,
            "n_positions": 1024,
            "vocab_size": 50_257,
        },
    ),
    "opt-125m": (
        0.12524,
        {
            "model_type": "opt",
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "ffn_dim": 3072,
            "max_position_embeddings": 2048,
            "word_embed_proj_dim": 768,
            "vocab_size": 50_272,
        },
    ),
    "gpt-neo-125m": (
        0.1252,
        {
            "model_type": "gpt_neo",
            "hidden_size": 768,
            "num_layers": 12,
            "num_heads": 12,
            "intermediate_size": None,
            "max_position_embeddings": 2048,
            "window_size": 256,
            "attention_types": [[["global", "local"], 6]],
            "vocab_size": 50_257,
        },
    ),
    "gpt-j-6b": (
        6.0509,
        {
            "model_type": "gptj",
            "n_embd": 4096,
            "n_layer": 28,
            "n_head": 16,
            "n_inner": None,
            "vocab_size": 50_400,
            "tie_word_embeddings": False,
        },
    ),
    "gpt-neox-20b": (
        20.554,
        {
            "model_type": "gpt_neox",
            "hidden_size": 6144,
            "num_hidden_layers": 44,
            "num_attention_heads": 64,
            "intermediate_size": 24_576,
            "vocab_size": 50_432,
            "tie_word_embeddings": False,
        },
    ),
    "mpt-7b": (
        6.6493,
        {
            "model_type": "mpt",
            "d_model": 4096,
            "n_layers": 32,
            "n_heads": 32,
            "expansion_ratio": 4,
            "vocab_size": 50_432,
        },
    ),
    "starcoder": (
        15.517,
        {
            "model_type": "gpt_bigcode",
            "n_embd": 6144,
            "n_layer": 40,
            "n_head": 48,
            "n_inner": 24_576,
            "n_positions": 8192,
            "multi_query": True,
            "vocab_size": 49_152,
        },
    ),
    "starcoder2-7b": (
        7.1739,
        {
            "model_type": "starcoder2",
            "hidden_size": 4608,
            "num_hidden_layers": 32,
            "num_attention_heads": 36,
            "num_key_value_heads": 4,
            "intermediate_size": 18_432,
            "sliding_window": 4096,
            "vocab_size": 49_152,
        },
    ),
    "phi-2": (
        2.7797,
        {
            "model_type": "phi",
            "hidden_size": 2560,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "intermediate_size": 10_240,
            "vocab_size": 51_200,
            "tie_word_embeddings": False,
        },
    ),
    "c4ai-command-r-v01": (
        34.98,
        {
            "model_type": "cohere",
            "hidden_size": 8192,
            "num_hidden_layers": 40,
            "num_attention_heads": 64,
            "num_key_value_heads": 64,
            "intermediate_size": 22_528,
            "vocab_size": 256_000,
        },
    ),
    "c4ai-command-r7b-12-2024": (
        8.0279,
        {
            "model_type": "cohere2",
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 14_336,
            "sliding_window": 4096,
            "vocab_size": 256_000,
        },
    ),
    "GLM-4-9B-0414": (
        9.4003,
        {
            "model_type": "glm4",
            "hidden_size": 4096,
            "num_hidden_layers": 40,
            "num_attention_heads": 32,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "intermediate_size": 13_696,
            "vocab_size": 151_552,
            "tie_word_embeddings": False,
        },
    ),
    "OLMoE-1B-7B-0924": (
        6.9192,
        {
            "model_type": "olmoe",
            "hidden_size": 2048,
            "num_hidden_layers": 16,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "intermediate_size": 1024,
            "num_experts": 64,
            "num_experts_per_tok": 8,
            "vocab_size": 50_304,
            "tie_word_embeddings": False,
        },
    ),
    "granite-3.0-3b-a800m-base": (
        3.2993,
        {
            "model_type": "granitemoe",
            "hidden_size": 1536,
            "num_hidden_layers": 32,
            "num_attention_heads": 24,
            "num_key_value_heads": 8,
            "intermediate_size": 512,
            "num_local_experts": 40,
            "num_experts_per_tok": 8,
            "vocab_size": 49_155,
            "tie_word_embeddings": True,
        },
    ),
    "Phi-3.5-MoE-instruct": (
        41.873,
        {
            "model_type": "phimoe",
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 6400,
            "num_local_experts": 16,
            "num_experts_per_tok": 2,
            "sliding_window": 131_072,
            "vocab_size": 32_064,
            "tie_word_embeddings": False,
        },
    ),
    "Llama-4-Maverick, its text model": (
        400.7,
        {
            "model_type": "llama4_text",
            "hidden_size": 5120,
            "num_hidden_layers": 48,
            "num_attention_heads": 40,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 8192,
            "intermediate_size_mlp": 16_384,
            "num_local_experts": 128,
            "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 2,
            "attention_chunk_size": 8192,
            "vocab_size": 202_048,
            "tie_word_embeddings": False,
        },
    ),
    "Minitron-4B-Base": (
        4.1901,
        {
            "model_type": "nemotron",
            "hidden_size": 3072,
            "num_hidden_layers": 32,
            "num_attention_heads": 24,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 9216,
            "vocab_size": 256_000,
            "tie_word_embeddings": False,
        },
    ),
    "stablelm-2-1_6b": (
        1.6445,
        {
            "model_type": "stablelm",
            "hidden_size": 2048,
            "num_hidden_layers": 24,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "intermediate_size": 5632,
            "vocab_size": 100_352,
            "tie_word_embeddings": False,
        },
    ),
    "Seed-OSS-36B": (
        36.151,
        {
            "model_type": "seed_oss",
            "hidden_size": 5120,
            "num_hidden_layers": 64,
            "num_attention_heads": 80,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 27_648,
            "vocab_size": 155_136,
            "tie_word_embeddings": False,
        },
    ),
}
"""Name -> parameters of all weights in 10^9, and its config.json. They are those of its safetensors' index, without
layers for multi-token prediction and without the copy of a tied output matrix, which Falcon's has.
"""


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_configuration_has_the_published_parameters(name: str) -> None:
    billions, config = PUBLISHED[name]
    shape = shape_of_config(config, source=name, sequence=128)
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=5e-3)


@pytest.mark.parametrize(
    "kind",
    [
        "mamba2",
        "nemotron_h",
        "gemma3",
        "llama4",
        "bert",
        "falcon_h1",
        "qwen3_next",
        "glm4_moe",
        "glm4v",
        "deepseek_v32",
    ],
)
def test_models_with_other_matrices_are_refused_with_the_known_types(kind: str) -> None:
    with pytest.raises(UsageError, match=f"'{kind}' is not known; .*the known types are {', '.join(KINDS)}; or give"):
        shape_of_config({"model_type": kind}, source="config.json", sequence=256)


@pytest.mark.parametrize(
    ("kind", "meant"),
    [
        ("qwen3moe", "did you mean 'qwen3_moe'"),
        ("mamba2", "the known types"),
        *[(other, "the known types") for other in ("glm4v", "llama4", "gemma3", "qwen3_next", "deepseek_v32")],
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


@pytest.mark.parametrize(
    ("name", "sequence", "windows"),
    [
        ("gemma-2-9b", 4096, None),
        ("gemma-2-9b", 8192, (4096, None) * 21),
        ("gemma-3-1b", 32_768, (*((512,) * 5 + (None,)) * 4, 512, 512)),
        ("gpt-oss-20b", 4096, (128, None) * 12),
        ("c4ai-command-r7b-12-2024", 8192, (4096, 4096, 4096, None) * 8),
        ("gpt-neo-125m", 2048, (None, 256) * 6),
        ("starcoder2-7b", 16_384, (4096,) * 32),
        ("Phi-3-mini", 4096, (2047,) * 32),
    ],
)
def test_windows_are_in_the_blocks_where_transformers_has_them(
    name: str, sequence: int, windows: tuple[int | None, ...] | None
) -> None:
    _, config = PUBLISHED[name]
    assert shape_of_config(config, source="config.json", sequence=sequence).windows == windows


def test_qwens_windows_are_in_later_blocks_and_only_if_they_are_used() -> None:
    config = PUBLISHED["Qwen1.5-MoE-A2.7B"][1] | {"sliding_window": 1024, "max_window_layers": 20}
    unstated = {key: value for key, value in config.items() if key != "use_sliding_window"}
    for unused in (unstated, config | {"use_sliding_window": False}):
        assert shape_of_config(unused, source="config.json", sequence=8192).windows is None
    used = shape_of_config(config | {"use_sliding_window": True}, source="config.json", sequence=8192)
    assert used.windows == (None,) * 20 + (1024,) * 4


def test_layer_types_say_where_windows_are() -> None:
    _, config = PUBLISHED["gpt-oss-20b"]
    kinds = ["full_attention"] * 23 + ["sliding_attention"]
    shape = shape_of_config(config | {"layer_types": kinds}, source="config.json", sequence=4096)
    assert shape.windows == (None,) * 23 + (128,)
    for wrong in (kinds[:-1], ["linear_attention"] * 24, "full_attention"):
        with pytest.raises(UsageError, match="layer_types is not a list of 24 entries"):
            shape_of_config(config | {"layer_types": wrong}, source="config.json", sequence=4096)


def test_a_window_of_unknown_place_is_refused() -> None:
    config = PUBLISHED["GLM-4-9B-0414"][1] | {"sliding_window": 128}
    with pytest.raises(UsageError, match="not the layer_types that say where"):
        shape_of_config(config, source="config.json", sequence=4096)


def test_attention_in_windows_leaves_out_a_triangle_below_the_diagonal() -> None:
    """Gemma 2: 16 heads of 256. 21 blocks have windows of 4096, which leave (8192 - 4096)^2 out of 8192^2."""
    _, config = PUBLISHED["gemma-2-9b"]
    shape = shape_of_config(config, source="config.json", sequence=8192)
    squares = 21 * 8192**2 + 21 * (8192**2 - 4096**2)
    assert attention_forward(shape, batch=2) == 2 * 2 * squares * (4096 + 4096)
    assert attention_forward(shape, batch=2, causal_half=True) == 2 * squares * (4096 + 4096)
    with pytest.raises(UsageError, match="needs the length of each document"):
        attention_forward(shape, batch=2, squared_lengths=2 * 8192)


def test_latent_attention_multiplies_queries_and_keys_wider_than_values() -> None:
    """DeepSeek-V3: 128 heads of 192 wide queries and keys, and of 128 wide values; an active token passes 37 B."""
    _, config = PUBLISHED["DeepSeek-V3"]
    shape = shape_of_config(config, source="config.json", sequence=4096)
    assert attention_forward(shape, batch=1) == 61 * 4096**2 * 2 * 128 * (192 + 128)
    assert shape.active_parameters / 1e9 == pytest.approx(37.55, rel=5e-3)


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("opt-125m", {"word_embed_proj_dim": 512}, "word_embed_proj_dim is 512"),
        ("mpt-7b", {"attn_config": {"attn_type": "multiquery_attention"}}, "attn_type is 'multiquery_attention'"),
        ("mpt-7b", {"expansion_ratio": 2}, "expansion_ratio is 2"),
        ("DeepSeek-V3", {"kv_lora_rank": None}, "lacks kv_lora_rank"),
        ("DeepSeek-V3", {"moe_layer_freq": 0}, "moe_layer_freq is 0; give a number from 1 on"),
        ("Llama-4-Maverick, its text model", {"interleave_moe_layer_step": 0}, "give a number from 1 on"),
    ],
)
def test_other_matrices_of_a_known_type_are_refused(name: str, wrong: dict[str, object], message: str) -> None:
    _, config = PUBLISHED[name]
    with pytest.raises(UsageError, match=message):
        shape_of_config(config | wrong, source="config.json", sequence=128)


def test_attention_in_chunks_is_refused_with_the_remedies() -> None:
    _, config = PUBLISHED["Llama-4-Maverick, its text model"]
    with pytest.raises(
        UsageError, match=r"chunks of 8192 tokens .*; give --seq 8192 or less, or its shapes in a \.toml"
    ):
        shape_of_config(config, source="config.json", sequence=8193)
