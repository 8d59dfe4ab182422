"""Shapes by the config.json of Hugging Face's transformers: the keys and defaults of each type of model.

Attention in windows costs less than the formula counts. Multi-latent attention, state spaces and towers for images have
other matrices. Such models are refused.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from traincope.errors import UsageError
from traincope.plan.model.transformer import Experts, Transformer

NEAR = 0.8
"""Similarity from which a type may be a misspelt one. Another number is another architecture: Llama 4 is not Llama."""
DIGITS = re.compile(r"\d+")
GIVE_SHAPES = "or give its shapes in a .toml file"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """Whole numbers of a config.json, by the names that most model types use."""

    source: str
    config: Mapping[str, Any]
    names: Mapping[str, tuple[str, ...]]
    """Name -> this model type's own names."""

    def find(self, name: str) -> int | None:
        for key in self.names.get(name, (name,)):
            value = self.config.get(key)
            if value is not None and type(value) is not int:
                raise UsageError(f"{self.source}: {key} is {value!r}, not a whole number")
            if value is not None:
                return value
        return None

    def require(self, name: str) -> int:
        value = self.find(name)
        if value is None:
            raise UsageError(f"{self.source} lacks {self.names.get(name, (name,))[0]}")
        return value


def _no_experts(_: _Sizes) -> None:
    return None


def _local_experts(sizes: _Sizes) -> Experts:
    return Experts(
        count=sizes.require("num_local_experts"),
        top_k=sizes.require("num_experts_per_tok"),
        ffn=sizes.require("intermediate_size"),
    )


def _qwen_experts(sizes: _Sizes) -> Experts:
    """Block i has experts if i + 1 is a multiple of `decoder_sparse_step` and not in `mlp_only_layers`."""
    step, without = sizes.find("decoder_sparse_step"), sizes.config.get("mlp_only_layers") or []
    step = 1 if step is None else step
    if step < 1:
        raise UsageError(f"{sizes.source}: decoder_sparse_step is {step}; give a number from 1 on")
    if not isinstance(without, list) or any(type(block) is not int for block in without):
        raise UsageError(f"{sizes.source}: mlp_only_layers is {without!r}, not a list of whole numbers")
    blocks = range(sizes.require("num_hidden_layers"))
    shared = sizes.find("shared_expert_intermediate_size")
    return Experts(
        count=sizes.require("num_experts"),
        top_k=sizes.require("num_experts_per_tok"),
        ffn=sizes.require("moe_intermediate_size"),
        shared=1 if shared else 0,
        shared_ffn=shared,
        pattern=tuple((block + 1) % step == 0 and block not in without for block in blocks),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """A value of `model_type`."""

    gated: bool = True
    """Its feed-forward multiplies three matrices."""
    tied: bool = False
    """The output is the embedding's matrix, unless `tie_word_embeddings` is given."""
    wide: bool = False
    """The feed-forward is 4 x hidden wide if its width is not given."""
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    experts: Callable[[_Sizes], Experts | None] = _no_experts


GPT2 = {
    "num_hidden_layers": ("n_layer",),
    "hidden_size": ("n_embd",),
    "num_attention_heads": ("n_head",),
    "intermediate_size": ("n_inner",),
}
BLOOM = {
    "num_hidden_layers": ("n_layer", "num_hidden_layers"),
    "hidden_size": ("hidden_size", "n_embed"),
    "num_attention_heads": ("n_head", "num_attention_heads"),
    "intermediate_size": ("ffn_hidden_size",),
}
KINDS: Mapping[str, _Kind] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "phi3", "olmo2", "granite"), _Kind()),
    "mixtral": _Kind(experts=_local_experts),
    **dict.fromkeys(("qwen2_moe", "qwen3_moe"), _Kind(experts=_qwen_experts)),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text"), _Kind(tied=True)),
    "gpt2": _Kind(gated=False, tied=True, wide=True, names=GPT2),
    "gpt_neox": _Kind(gated=False),
    "bloom": _Kind(gated=False, tied=True, wide=True, names=BLOOM),
}
"""Value of `model_type` -> its keys and defaults in transformers. A new one needs its published number of parameters in
`tests/plan/model/test_configurations.py`.
"""


def shape_of_config(config: Mapping[str, Any], *, source: str, sequence: int) -> Transformer:
    """Shapes by the keys of transformers' configurations. Raises UsageError for a model type that is not in `KINDS`.

    `source`: name of the configuration in errors. `sequence`: tokens per sequence in the training.
    """
    name = config.get("model_type")
    kind = KINDS.get(str(name))
    if kind is None:
        close = get_close_matches(str(name), KINDS, cutoff=NEAR)
        near = next((kind for kind in close if DIGITS.findall(kind) == DIGITS.findall(str(name))), None)
        meant = "" if near is None else f"did you mean {near!r}? "
        raise UsageError(
            f"{source}: model_type {name!r} is not known; {meant}the known types are {', '.join(KINDS)}; {GIVE_SHAPES}"
        )
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    if isinstance(window, int) and window < sequence:
        raise UsageError(
            f"{source}: attention in windows of {window} tokens has no formula here; "
            f"give --seq {window} or less, or its shapes in a .toml file for an upper bound"
        )
    sizes = _Sizes(source=source, config=config, names=kind.names)
    return Transformer(
        layers=sizes.require("num_hidden_layers"),
        hidden=sizes.require("hidden_size"),
        heads=sizes.require("num_attention_heads"),
        kv_heads=sizes.find("num_key_value_heads"),
        head_dim=sizes.find("head_dim"),
        ffn=sizes.find("intermediate_size") if kind.wide else sizes.require("intermediate_size"),
        vocabulary=sizes.require("vocab_size"),
        sequence=sequence,
        gated_mlp=kind.gated,
        untied=not config.get("tie_word_embeddings", kind.tied),
        experts=kind.experts(sizes),
    )
