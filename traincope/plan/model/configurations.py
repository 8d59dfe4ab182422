"""Shapes by the config.json of Hugging Face's transformers: the keys and defaults of each type of model.

State spaces, attention in chunks and towers for images have other matrices or products. Such models are refused. Layers
for multi-token prediction are not part of transformers' models.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from traincope.errors import UsageError
from traincope.plan.model.transformer import Experts, Latent, Transformer

NEAR = 0.8
"""Similarity from which a type may be a misspelt one. Another number is another architecture: Llama 4 is not Llama. So
is a longer name: GLM-4V is not GLM-4.
"""
DIGITS = re.compile(r"\d+")
GIVE_SHAPES = "or give its shapes in a .toml file"
WIDTH = "intermediate_size"
WHOLE_HEADS = "multihead_attention"
USUAL_RATIO = 4
"""Width of a feed-forward over the model's."""
GPT2_POSITIONS = 1_024
OPT_PADDING = 2
"""Rows that OPT has before the first position."""
CHUNKS = "attention_chunk_size"
WINDOWS = ("sliding_window", "window_size")
"""Keys with the most tokens that attention reaches in some blocks."""
SLIDING, WHOLE = "sliding_attention", "full_attention"
"""Entries of `layer_types`: blocks with and without a window."""


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

    def require(self, name: str, *, least: int | None = None) -> int:
        """Raises UsageError without the number, or if it is below `least`."""
        value = self.find(name)
        key = self.names.get(name, (name,))[0]
        if value is None:
            raise UsageError(f"{self.source} lacks {key}")
        if least is not None and value < least:
            raise UsageError(f"{self.source}: {key} is {value}; give a number from {least} on")
        return value


def _no_experts(_: _Sizes) -> None:
    return None


def _local_experts(sizes: _Sizes) -> Experts:
    return Experts(
        count=sizes.require("num_local_experts"),
        top_k=sizes.require("num_experts_per_tok"),
        ffn=sizes.require("intermediate_size"),
    )


def _olmo_experts(sizes: _Sizes) -> Experts:
    return Experts(
        count=sizes.require("num_experts"),
        top_k=sizes.require("num_experts_per_tok"),
        ffn=sizes.require("intermediate_size"),
    )


def _deepseek_experts(sizes: _Sizes) -> Experts:
    """Blocks from `first_k_dense_replace` on have experts, of these each `moe_layer_freq`-th."""
    freq = sizes.find("moe_layer_freq")
    freq = 1 if freq is None else sizes.require("moe_layer_freq", least=1)
    blocks, dense = range(sizes.require("num_hidden_layers")), sizes.find("first_k_dense_replace") or 0
    return Experts(
        count=sizes.require("n_routed_experts"),
        top_k=sizes.require("num_experts_per_tok"),
        ffn=sizes.require("moe_intermediate_size"),
        shared=sizes.find("n_shared_experts") or 0,
        pattern=tuple(block >= dense and block % freq == 0 for block in blocks),
    )


def _llama4_experts(sizes: _Sizes) -> Experts:
    """Each `interleave_moe_layer_step`-th block has experts, and a shared one of the same width."""
    step = sizes.require("interleave_moe_layer_step", least=1)
    return Experts(
        count=sizes.require("num_local_experts"),
        top_k=sizes.require("num_experts_per_tok"),
        ffn=sizes.require("intermediate_size"),
        shared=1,
        pattern=tuple((block + 1) % step == 0 for block in range(sizes.require("num_hidden_layers"))),
    )


def _qwen_experts(sizes: _Sizes) -> Experts:
    """Block i has experts if i + 1 is a multiple of `decoder_sparse_step` and not in `mlp_only_layers`."""
    step, without = sizes.find("decoder_sparse_step"), sizes.config.get("mlp_only_layers") or []
    step = 1 if step is None else sizes.require("decoder_sparse_step", least=1)
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


def _kv_heads(sizes: _Sizes) -> int | None:
    return sizes.find("num_key_value_heads")


def _falcon_kv_heads(sizes: _Sizes) -> int | None:
    """The first Falcon has one head of keys for all, unless `multi_query` is false."""
    if sizes.config.get("new_decoder_architecture"):
        return sizes.require("num_key_value_heads")
    return 1 if sizes.config.get("multi_query", True) else None


def _starcoder_kv_heads(sizes: _Sizes) -> int | None:
    return 1 if sizes.config.get("multi_query", True) else None


def _mpt_kv_heads(sizes: _Sizes) -> int | None:
    attention = sizes.config.get("attn_config")
    kind = attention.get("attn_type", WHOLE_HEADS) if isinstance(attention, dict) else WHOLE_HEADS
    if kind != WHOLE_HEADS:
        raise UsageError(f"{sizes.source}: attn_type is {kind!r}, and only {WHOLE_HEADS} is known; {GIVE_SHAPES}")
    return None


def _no_positions(_: _Sizes) -> int:
    return 0


def _no_latent(_: _Sizes) -> Latent | None:
    return None


def _latent(sizes: _Sizes) -> Latent:
    return Latent(
        kv_rank=sizes.require("kv_lora_rank"),
        rope=sizes.require("qk_rope_head_dim"),
        value_dim=sizes.require("v_head_dim"),
        q_rank=sizes.find("q_lora_rank"),
    )


def _latent_head(sizes: _Sizes) -> int:
    return sizes.require("qk_nope_head_dim") + sizes.require("qk_rope_head_dim")


Windows = tuple[int | None, ...] | None


def _by_layer_types(sizes: _Sizes, *, every: int | None = None) -> Windows:
    """One window per block, of those that `layer_types` calls sliding.

    `every`: without that key, each so-many-th block has no window. 0: all blocks have one. None: their places are
    unknown.
    """
    window, kinds = sizes.find("sliding_window"), sizes.config.get("layer_types")
    if window is None or not sizes.config.get("use_sliding_window", True):
        return None
    layers = sizes.require("num_hidden_layers", least=1)
    if kinds is None:
        if every is None:
            raise UsageError(
                f"{sizes.source} has sliding_window, and not the layer_types that say where; {GIVE_SHAPES}"
            )
        return tuple(None if every and block % every == 0 else window for block in range(1, layers + 1))
    if not isinstance(kinds, list) or len(kinds) != layers or not {SLIDING, WHOLE}.issuperset(map(str, kinds)):
        raise UsageError(
            f"{sizes.source}: layer_types is not a list of {layers} entries {SLIDING} or {WHOLE}; {GIVE_SHAPES}"
        )
    return tuple(window if kind == SLIDING else None for kind in kinds)


def _all_blocks(sizes: _Sizes) -> Windows:
    return _by_layer_types(sizes, every=0)


def _later_blocks(sizes: _Sizes) -> Windows:
    """Blocks from `max_window_layers` on, where `use_sliding_window` is true, as Qwen's. Its default is false."""
    if not sizes.config.get("use_sliding_window", False):
        return None
    if sizes.config.get("layer_types") is not None:
        return _by_layer_types(sizes)
    first, window = sizes.require("max_window_layers"), sizes.require("sliding_window")
    return tuple(window if block >= first else None for block in range(sizes.require("num_hidden_layers")))


def _periodic(every: int) -> Callable[[_Sizes], Windows]:
    """Windows in all blocks but each `every`-th, or as often as `sliding_window_pattern` says."""

    def windows(sizes: _Sizes) -> Windows:
        if sizes.config.get("layer_types") is not None:
            return _by_layer_types(sizes)
        named = sizes.find("sliding_window_pattern") or sizes.find("_sliding_window_pattern")
        return _by_layer_types(sizes, every=named or every)

    return windows


def _gpt_neo_windows(sizes: _Sizes) -> Windows:
    """Blocks that `attention_types` calls local: a list of pairs of a pattern and how often it is repeated."""
    window = sizes.find("window_size")
    kinds = sizes.config.get("attention_layers")
    if kinds is None:
        try:
            kinds = [kind for pattern, times in sizes.config["attention_types"] for kind in pattern * times]
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{sizes.source} lacks attention_types, a list of patterns; {GIVE_SHAPES}") from error
    return tuple(window if kind == "local" else None for kind in kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """A value of `model_type`."""

    gated: bool = True
    """Its feed-forward multiplies three matrices."""
    tied: bool = False
    """The output is the embedding's matrix, unless `tie_word_embeddings` is given."""
    wide: bool = False
    """The feed-forward is 4 x hidden wide if its width is not given."""
    biases: bool = False
    """Products of its blocks have biases."""
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    kv_heads: Callable[[_Sizes], int | None] = _kv_heads
    head_dim: Callable[[_Sizes], int | None] = lambda sizes: sizes.find("head_dim")
    experts: Callable[[_Sizes], Experts | None] = _no_experts
    positions: Callable[[_Sizes], int] = _no_positions
    latent: Callable[[_Sizes], Latent | None] = _no_latent
    windows: Callable[[_Sizes], Windows] = _by_layer_types


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
FALCON = {
    "num_hidden_layers": ("num_hidden_layers", "n_layer"),
    "num_attention_heads": ("num_attention_heads", "n_head"),
    "num_key_value_heads": ("num_kv_heads", "n_head_kv"),
    "intermediate_size": ("ffn_hidden_size",),
}
MPT = {"num_hidden_layers": ("n_layers",), "hidden_size": ("d_model",), "num_attention_heads": ("n_heads",)}
OPT = {"intermediate_size": ("ffn_dim",)}
GPT_NEO = {"num_hidden_layers": ("num_layers",), "num_attention_heads": ("num_heads",)}
GPT_OSS = {"num_experts_per_tok": ("num_experts_per_tok", "experts_per_token")}
LLAMA4 = {"ffn": ("intermediate_size_mlp",)}
LIKE_LLAMA = (*("llama", "olmo", "olmo2", "granite", "glm", "glm4", "stablelm", "seed_oss", "internlm2", "baichuan"),)
KINDS: Mapping[str, _Kind] = {
    **dict.fromkeys(LIKE_LLAMA, _Kind()),
    **dict.fromkeys(("mistral", "phi3"), _Kind(windows=_all_blocks)),
    **dict.fromkeys(("qwen2", "qwen3"), _Kind(windows=_later_blocks)),
    **dict.fromkeys(("olmo3", "exaone4"), _Kind(windows=_periodic(4))),
    **dict.fromkeys(("gemma", "cohere", "smollm3"), _Kind(tied=True)),
    "gemma2": _Kind(tied=True, windows=_periodic(2)),
    "gemma3_text": _Kind(tied=True, windows=_periodic(6)),
    "cohere2": _Kind(tied=True, windows=_periodic(4)),
    **dict.fromkeys(("mixtral", "phimoe"), _Kind(experts=_local_experts, windows=_all_blocks)),
    "granitemoe": _Kind(tied=True, experts=_local_experts),
    "gpt_oss": _Kind(names=GPT_OSS, experts=_local_experts, windows=_periodic(2)),
    "qwen2_moe": _Kind(experts=_qwen_experts, windows=_later_blocks),
    "qwen3_moe": _Kind(experts=_qwen_experts, windows=_later_blocks),
    "olmoe": _Kind(experts=_olmo_experts),
    "llama4_text": _Kind(names=LLAMA4, experts=_llama4_experts),
    **dict.fromkeys(
        ("deepseek_v2", "deepseek_v3", "kimi_k2"),
        _Kind(experts=_deepseek_experts, head_dim=_latent_head, latent=_latent),
    ),
    **dict.fromkeys(("gpt_neox", "phi", "persimmon"), _Kind(gated=False, biases=True)),
    "nemotron": _Kind(gated=False),
    "starcoder2": _Kind(gated=False, tied=True, biases=True, windows=_all_blocks),
    **dict.fromkeys(("gptj", "codegen"), _Kind(gated=False, wide=True, names=GPT2)),
    "gpt2": _Kind(
        gated=False,
        tied=True,
        wide=True,
        biases=True,
        names=GPT2,
        kv_heads=lambda _: None,
        positions=lambda sizes: sizes.find("n_positions") or GPT2_POSITIONS,
    ),
    "gpt_bigcode": _Kind(
        gated=False,
        tied=True,
        wide=True,
        biases=True,
        names=GPT2,
        kv_heads=_starcoder_kv_heads,
        positions=lambda sizes: sizes.find("n_positions") or GPT2_POSITIONS,
    ),
    "gpt_neo": _Kind(
        gated=False,
        tied=True,
        wide=True,
        names=GPT_NEO,
        positions=lambda sizes: sizes.require("max_position_embeddings"),
        windows=_gpt_neo_windows,
    ),
    "opt": _Kind(
        gated=False,
        tied=True,
        biases=True,
        names=OPT,
        positions=lambda sizes: sizes.require("max_position_embeddings") + OPT_PADDING,
    ),
    "mpt": _Kind(gated=False, tied=True, wide=True, names=MPT, kv_heads=_mpt_kv_heads),
    "bloom": _Kind(gated=False, tied=True, wide=True, biases=True, names=BLOOM),
    "falcon": _Kind(gated=False, tied=True, wide=True, names=FALCON, kv_heads=_falcon_kv_heads),
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
        digits = DIGITS.findall(str(name))
        near = next((e for e in close if DIGITS.findall(e) == digits and not str(name).startswith(e)), None)
        meant = "" if near is None else f"did you mean {near!r}? "
        raise UsageError(
            f"{source}: model_type {name!r} is not known; {meant}the known types are {', '.join(KINDS)}; {GIVE_SHAPES}"
        )
    sizes = _Sizes(source=source, config=config, names=kind.names)
    _require_plain(sizes)
    chunk = sizes.find(CHUNKS)
    if chunk is not None and chunk < sequence:
        raise UsageError(
            f"{source}: attention in chunks of {chunk} tokens has no formula here; "
            f"give --seq {chunk} or less, or its shapes in a .toml file for an upper bound"
        )
    return Transformer(
        layers=sizes.require("num_hidden_layers"),
        hidden=sizes.require("hidden_size"),
        heads=sizes.require("num_attention_heads"),
        kv_heads=kind.kv_heads(sizes),
        head_dim=kind.head_dim(sizes),
        ffn=sizes.find("intermediate_size") if kind.wide else sizes.require("ffn" if "ffn" in kind.names else WIDTH),
        vocabulary=sizes.require("vocab_size"),
        sequence=sequence,
        gated_mlp=kind.gated,
        untied=not config.get("tie_word_embeddings", kind.tied),
        experts=kind.experts(sizes),
        positions=kind.positions(sizes),
        biases=kind.biases,
        latent=kind.latent(sizes),
        windows=_windows(sizes, kind, sequence=sequence),
    )


def _windows(sizes: _Sizes, kind: _Kind, *, sequence: int) -> Windows:
    """Windows that are shorter than the sequence; None without one. Their places matter only then."""
    shortest = min((size for key in WINDOWS if (size := sizes.find(key)) is not None), default=sequence)
    if shortest >= sequence:
        return None
    windows = kind.windows(sizes) or ()
    return windows if any(windows) else None


def _require_plain(sizes: _Sizes) -> None:
    """Raise UsageError for matrices that a known type has only in some of its models."""
    width = sizes.find("word_embed_proj_dim")
    if width is not None and width != sizes.require("hidden_size"):
        raise UsageError(f"{sizes.source}: word_embed_proj_dim is {width}, unlike hidden_size; {GIVE_SHAPES}")
    ratio = sizes.find("expansion_ratio")
    if ratio is not None and ratio != USUAL_RATIO:
        raise UsageError(f"{sizes.source}: expansion_ratio is {ratio}, and only {USUAL_RATIO} is known; {GIVE_SHAPES}")
