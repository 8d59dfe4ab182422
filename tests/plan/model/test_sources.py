"""Shapes of models by presets and files, against the published numbers of parameters."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from traincope.errors import UsageError
from traincope.plan.model.sources import PRESETS, read_model
from traincope.plan.model.transformer import Experts, Transformer

BILLIONS = {
    "llama3-8b": 8.03,
    "llama3-70b": 70.55,
    "llama3-405b": 405.8,
    "mixtral-8x7b": 46.7,
    "llama2-7b": 6.74,
    "llama2-13b": 13.02,
    "gpt3-175b": 174.6,
}
"""Published parameters, in 10^9 (model cards; GPT-3: Narayanan et al. 2021, table 2)."""

LLAMA_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}


def test_presets_have_the_published_parameters() -> None:
    assert {name: pytest.approx(shape.parameters / 1e9, rel=2e-3) for name, shape in PRESETS.items()} == BILLIONS


def test_the_sequence_is_that_of_the_training() -> None:
    assert read_model("llama3-8b", sequence=2048).sequence == 2048
    with pytest.raises(UsageError, match="give --seq"):
        read_model("llama3-8b")


def config(folder: Path, **values: object) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(values))
    return str(path)


def test_a_configuration_of_transformers(tmp_path: Path) -> None:
    assert read_model(config(tmp_path, **LLAMA_8B), sequence=8192) == PRESETS["llama3-8b"]


def test_gpt2(tmp_path: Path) -> None:
    """124 million parameters, with 0.8 of positions and without 0.1 of biases and norms."""
    path = config(
        tmp_path, model_type="gpt2", n_layer=12, n_embd=768, n_head=12, n_inner=None, vocab_size=50257, n_ctx=1024
    )
    shape = read_model(path, sequence=1024)
    expected = Transformer(layers=12, hidden=768, heads=12, vocabulary=50257, sequence=1024, positions=1024)
    assert shape == replace(expected, biases=True)
    assert shape.parameters == 12 * 12 * 768**2 + (50257 + 1024) * 768


def test_experts(tmp_path: Path) -> None:
    mixtral = LLAMA_8B | {
        "model_type": "mixtral",
        "vocab_size": 32000,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": None,
    }
    assert read_model(config(tmp_path, **mixtral), sequence=8192) == PRESETS["mixtral-8x7b"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "lama"}, "model_type 'lama' is not known; did you mean 'llama'"),
        ({"model_type": "qwen9"}, "model_type 'qwen9' is not known; the known types are"),
        ({"model_type": None}, "model_type None is not known"),
        ({"hidden_size": None}, "lacks hidden_size"),
        ({"hidden_size": "4096"}, "hidden_size is '4096', not a whole number"),
        ({"sliding_window": 4096}, "has sliding_window, and not the layer_types that say where"),
    ],
)
def test_an_uncertain_configuration_is_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_model(config(tmp_path, **(LLAMA_8B | changes)), sequence=8192)


def test_a_window_that_is_off_or_longer_than_the_sequence_does_not_matter(tmp_path: Path) -> None:
    off = LLAMA_8B | {"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}
    assert read_model(config(tmp_path, **off), sequence=8192).sequence == 8192
    assert read_model(config(tmp_path, **(LLAMA_8B | {"sliding_window": 4096})), sequence=4096).sequence == 4096


def test_a_table_of_shapes(tmp_path: Path) -> None:
    path = tmp_path / "model.toml"
    path.write_text(
        "layers = 2\nhidden = 64\nheads = 4\nvocabulary = 100\nsequence = 16\ngated_mlp = true\n"
        "[experts]\ncount = 4\ntop_k = 1\nffn = 32\n"
    )
    expected = Transformer(
        layers=2,
        hidden=64,
        heads=4,
        vocabulary=100,
        sequence=16,
        gated_mlp=True,
        experts=Experts(count=4, top_k=1, ffn=32),
    )
    assert read_model(str(path)) == expected
    assert read_model(str(path), sequence=32).sequence == 32


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[model]\nlayers = 2\n", "model = .* is not a shape"),
        ("layers = 2.5\n", "layers = 2.5 is not a shape"),
        ("layers = true\n", "layers = True is not a shape"),
        ("layers = 2\n", "lacks shapes"),
        ("layers = ", "cannot be read"),
        ("experts = 8\n", "experts = 8 is not a table of shapes"),
    ],
)
def test_an_unclear_table_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "model.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_model(str(path))


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(UsageError, match=r"did you mean llama3-70b.* or one of llama3-8b"):
        read_model("3-70b")


def test_only_a_near_name_is_meant() -> None:
    meant = "^bert is not a model; give a config.json, a .toml file, a number of parameters such as 70e9, or one of"
    with pytest.raises(UsageError, match=meant):
        read_model("bert")
