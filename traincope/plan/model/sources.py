"""Shapes of a model by the name of a preset, a config.json of Hugging Face's transformers, a TOML file, or a number of
parameters (`sizes.py`).

A TOML file has the fields of `Transformer` as keys, and those of `Experts` in a table `[experts]`.
"""

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from traincope.errors import UsageError
from traincope.plan.model.configurations import shape_of_config
from traincope.plan.model.sizes import parameters_of, shape_of_size
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


UNLISTED = ("pattern", "latent", "windows")
"""Fields that a TOML file does not have."""
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
    if (parameters := parameters_of(source)) is not None:
        return shape_of_size(parameters, sequence=sequence)
    if source.endswith(".toml"):
        return _by_table(source, _read(source, tomllib.loads), sequence=sequence)
    near = [name for name in PRESETS if source.lower() in name] or get_close_matches(source.lower(), PRESETS, n=1)
    meant = f"did you mean {near[0]}? Give" if near else "give"
    raise UsageError(
        f"{source} is not a model; {meant} a config.json, a .toml file, a number of parameters such as 70e9, or one of "
        f"{', '.join(PRESETS)}"
    )


def _read(source: str, parse: Callable[[str], Any]) -> dict[str, Any]:
    try:
        table = parse(Path(source).read_text(encoding="utf-8-sig"))
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
    known = {entry.name: bool if entry.type is bool else int for entry in fields(kind) if entry.name not in UNLISTED}
    for name, value in values.items():
        if name not in known or (value is not None and name != "experts" and type(value) is not known[name]):
            raise UsageError(f"{source}: {name} = {value!r} is not a shape; the keys are {', '.join(known)}")
    try:
        return kind(**values)
    except TypeError as error:
        raise UsageError(f"{source} lacks shapes: {error}") from error
