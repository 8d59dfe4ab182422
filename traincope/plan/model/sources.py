"""Shapes of a model by the name of a preset, by a config.json of Hugging Face's transformers, or by a TOML file.

A TOML file has the fields of `Transformer` as keys, and those of `Experts` in a table `[experts]`.
"""

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from traincope.errors import UsageError
from traincope.plan.model.transformer import Experts, Transformer


def _llama3(*, layers: int, hidden: int, heads: int, ffn: int) -> Transformer:
    return Transformer(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=8,
        ffn=ffn,
        vocabulary=128_256,
        sequence=8_192,
        gated_mlp=True,
        untied=True,
    )


def _llama2(*, layers: int, hidden: int, heads: int, ffn: int) -> Transformer:
    return Transformer(
        layers=layers,
        hidden=hidden,
        heads=heads,
        ffn=ffn,
        vocabulary=32_000,
        sequence=4_096,
        gated_mlp=True,
        untied=True,
    )


Shape = TypeVar("Shape", Transformer, Experts)

PRESETS: Mapping[str, Transformer] = MappingProxyType(
    {
        "llama3-8b": _llama3(layers=32, hidden=4_096, heads=32, ffn=14_336),
        "llama3-70b": _llama3(layers=80, hidden=8_192, heads=64, ffn=28_672),
        "llama3-405b": _llama3(layers=126, hidden=16_384, heads=128, ffn=53_248),
        "mixtral-8x7b": Transformer(
            layers=32,
            hidden=4_096,
            heads=32,
            kv_heads=8,
            ffn=14_336,
            vocabulary=32_000,
            sequence=8_192,
            gated_mlp=True,
            untied=True,
            experts=Experts(count=8, top_k=2, ffn=14_336),
        ),
        "llama2-7b": _llama2(layers=32, hidden=4_096, heads=32, ffn=11_008),
        "llama2-13b": _llama2(layers=40, hidden=5_120, heads=40, ffn=13_824),
        "gpt3-175b": Transformer(layers=96, hidden=12_288, heads=96, vocabulary=51_200, sequence=2_048),
    }
)
"""Name -> shapes: Llama 3 (Grattafiori et al. 2024, arXiv:2407.21783, table 3), Mixtral (Jiang et al. 2024,
arXiv:2401.04088, table 1), Llama 2 (Touvron et al. 2023, arXiv:2307.09288; its config.json), and GPT-3 with Megatron's
vocabulary (Korthikanti et al. 2022, arXiv:2205.05198, table 3)."""


def read_model(source: str, *, sequence: int | None = None) -> Transformer:
    """Read shapes. `sequence`: tokens per sequence in the training; None: as a TOML file states it.

    Raises UsageError for an unknown preset, a file that cannot be read, and a model that is not of a known kind.
    """
    if source in PRESETS or source.endswith(".json"):
        if sequence is None:
            raise UsageError(f"{source} does not state the tokens per sequence of the training; give --seq")
        shape = PRESETS.get(source) or shape_of_config(_read(source, json.loads), source=source, sequence=sequence)
        return replace(shape, sequence=sequence)
    if source.endswith(".toml"):
        return _by_table(source, _read(source, tomllib.loads), sequence=sequence)
    near = get_close_matches(source.lower(), PRESETS, n=1, cutoff=0.0)[0]
    raise UsageError(
        f"{source} is not a model; did you mean {near}? Give a config.json, a .toml file, or one of "
        f"{', '.join(PRESETS)}"
    )


def _read(source: str, parse: Callable[[str], Any]) -> dict[str, Any]:
    try:
        table = parse(Path(source).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{source} cannot be read as a model: {error}") from error
    if not isinstance(table, dict):
        raise UsageError(f"{source} is not a model: it contains no table of shapes")
    return table


def _by_table(source: str, table: dict[str, Any], *, sequence: int | None) -> Transformer:
    experts = table.pop("experts", None)
    if experts is not None and not isinstance(experts, dict):
        raise UsageError(
            f"{source}: experts = {experts!r} is not a table of shapes; write [experts] and its keys below it"
        )
    if sequence is not None:
        table["sequence"] = sequence
    built = None if experts is None else _built(source, Experts, experts)
    return _built(source, Transformer, {**table, "experts": built})


def _built(source: str, kind: type[Shape], values: dict[str, Any]) -> Shape:
    known = {entry.name: bool if entry.type is bool else int for entry in fields(kind)}
    for name, value in values.items():
        if name not in known or (value is not None and name != "experts" and type(value) is not known[name]):
            raise UsageError(f"{source}: {name} = {value!r} is not a shape; the keys are {', '.join(known)}")
    try:
        return kind(**values)
    except TypeError as error:
        raise UsageError(f"{source} lacks shapes: {error}") from error


GATED = ("llama", "mistral", "qwen2", "qwen3", "mixtral")
"""Values of `model_type` whose feed-forward is gated."""
PLAIN = ("gpt2", "gpt_neox")
"""Values of `model_type` whose feed-forward multiplies two matrices."""
GPT2_NAMES = {
    "num_hidden_layers": "n_layer",
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
}
"""Names of the keys in a config.json of gpt2."""


def shape_of_config(config: Mapping[str, Any], *, source: str, sequence: int) -> Transformer:
    """Shapes by the keys of transformers' configurations. Raises UsageError for a model type that is not listed here.

    `source`: name of the configuration in errors. `sequence`: tokens per sequence in the training.

    Attention in windows costs less than the formula counts, so such a model is refused.
    """
    kind = config.get("model_type")
    if kind not in (*GATED, *PLAIN):
        near = get_close_matches(str(kind), (*GATED, *PLAIN), n=1, cutoff=0.0)[0]
        raise UsageError(
            f"{source}: model_type {kind!r} is not known; did you mean {near!r}? Or give its shapes in a .toml file"
        )
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    if isinstance(window, int) and window < sequence:
        raise UsageError(f"{source}: attention in windows of {window} tokens has no formula here; give no model")
    sizes = _Sizes(source=source, config=config, names=GPT2_NAMES if kind == "gpt2" else {})
    ffn = sizes.find("intermediate_size") if kind == "gpt2" else sizes.require("intermediate_size")
    return Transformer(
        layers=sizes.require("num_hidden_layers"),
        hidden=sizes.require("hidden_size"),
        heads=sizes.require("num_attention_heads"),
        kv_heads=sizes.find("num_key_value_heads"),
        head_dim=sizes.find("head_dim"),
        ffn=ffn,
        vocabulary=sizes.require("vocab_size"),
        sequence=sequence,
        gated_mlp=kind in GATED,
        untied=not config.get("tie_word_embeddings", kind == "gpt2"),
        experts=_experts(sizes) if kind == "mixtral" else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """Whole numbers of a config.json, by the names that most model types use."""

    source: str
    config: Mapping[str, Any]
    names: Mapping[str, str]
    """Name -> this model type's own name."""

    def find(self, name: str) -> int | None:
        key = self.names.get(name, name)
        value = self.config.get(key)
        if value is not None and type(value) is not int:
            raise UsageError(f"{self.source}: {key} is {value!r}, not a whole number")
        return value

    def require(self, name: str) -> int:
        value = self.find(name)
        if value is None:
            raise UsageError(f"{self.source} lacks {self.names.get(name, name)}")
        return value


def _experts(sizes: _Sizes) -> Experts:
    return Experts(
        count=sizes.require("num_local_experts"),
        top_k=sizes.require("num_experts_per_tok"),
        ffn=sizes.require("intermediate_size"),
    )
