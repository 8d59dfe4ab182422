"""Megatron-LM's arguments in a shell script or text: NVIDIA/Megatron-LM, megatron/training/arguments.py."""

import re
from collections.abc import Mapping
from itertools import pairwise

from traincope.errors import UsageError
from traincope.plan.check.readers.values import Values
from traincope.plan.check.training_plan import TrainingPlan
from traincope.plan.layout.layout import Layout
from traincope.plan.model.flops import Recompute
from traincope.plan.model.transformer import Experts, Transformer

PAD_MULTIPLE = 128
"""Default of --make-vocab-size-divisible-by."""
REQUIRED = ("num-layers", "hidden-size", "num-attention-heads", "seq-length")
GLUED = re.compile(r"\\\n")
ASSIGNED = re.compile(r"^\s*(?:export\s+)?(\w+)=(.*?)\s*(?:#.*)?$", re.MULTILINE)
LITERAL = re.compile(r"[\w.,-]+")


def is_megatron(text: str) -> bool:
    return "--num-layers" in text or "--tensor-model-parallel-size" in text


def arguments(source: str, text: str) -> Mapping[str, object]:
    """Name -> value of each `--name value`; True for a name alone. Variables of the script are filled in.

    Raises UsageError for a used variable that the script assigns several values.
    """
    variables: dict[str, set[str]] = {}
    for assigned, content in ASSIGNED.findall(text):
        variables.setdefault(assigned, set()).add(content.strip("\"'"))
    found: dict[str, object] = {}
    for line in GLUED.sub(" ", text).splitlines():
        for word, following in pairwise([*_words(line), ""]):
            if word.startswith("--") and len(word) > 2:
                name, equals, value = word[2:].partition("=")
                value = value if equals else "" if following.startswith("--") else following
                found[name] = _typed(_filled_in(source, value, variables))
    return found


def _filled_in(source: str, word: str, variables: Mapping[str, set[str]]) -> str:
    """Literal value of a variable of the script; the word itself if it is none, or if the script computes it."""
    name = re.fullmatch(r"\$\{?(\w+)\}?", word)
    values = sorted(variables.get(name[1], ())) if name else []
    if len(values) > 1:
        raise UsageError(f"{source}: {word} is {' and '.join(values)}; write the value that the training uses")
    return values[0] if values and LITERAL.fullmatch(values[0]) else word


def _words(line: str) -> list[str]:
    """Words of a line without its comment. Arguments stand in strings and arrays, so quotes and brackets are blanks."""
    return re.sub(r"[\"'()]", " ", re.sub(r"(^|\s)#.*", "", line)).split()


def _typed(value: str) -> object:
    if value in ("", "\\"):
        return True
    for kind in (int, float):
        try:
            return kind(value.replace("_", "") if kind is int else value)
        except ValueError:
            continue
    return value


def read_megatron(source: str, text: str, *, shape: Transformer | None, gpus: int) -> TrainingPlan:
    """The plan on `gpus` GPUs. Raises UsageError for values of a wrong kind and an impossible layout."""
    values = Values(source, {"": arguments(source, text)}, "")
    tp, pp = values.whole("tensor-model-parallel-size", 1), values.whole("pipeline-model-parallel-size", 1)
    shape = shape or _shape(values, tp=tp)
    saves = values.given("save")
    experts = values.whole("num-experts", 0) > 0
    return TrainingPlan(
        framework="Megatron-LM",
        shape=shape,
        layout=_layout(values, tp=tp, pp=pp, gpus=gpus, layers=None if shape is None else shape.layers),
        tp=tp,
        pp=pp,
        vocabulary=None if shape is None else _padded(values, tp, shape.vocabulary),
        head_dim=None if shape is None else shape.query_width // shape.heads,
        recompute=_recompute(values),
        clips=values.number("clip-grad", 1.0) > 0,
        optimizer_states=values.text("exp-avg-sq-dtype", "fp32"),
        checkpoint_steps=values.whole("save-interval", 0) or None if saves else None,
        saves=saves,
        blocking_saves=saves and not values.given("async-save") if saves else None,
        workers=values.whole("num-workers", 2),
        experts=experts,
        capacity_factor=values.number("moe-expert-capacity-factor", 0.0) or None,
        balance=values.number("moe-aux-loss-coeff", 0.0) if experts else None,
        watches_stragglers=values.given("log-straggler"),
    )


def _recompute(values: Values) -> Recompute:
    granularity = values.text("recompute-granularity", "")
    if granularity == "full" or values.given("checkpoint-activations"):
        return Recompute.FULL
    selective = granularity == "selective" or values.given("recompute-activations")
    return Recompute.SELECTIVE if selective else Recompute.NONE


def _shape(values: Values, *, tp: int) -> Transformer | None:
    """Shapes; None unless the arguments give all of them."""
    vocabulary = _padded(values, tp, values.whole("vocab-size", 0))
    if not all(values.given(name) for name in REQUIRED) or not vocabulary:
        return None
    hidden = values.whole("hidden-size", 1)
    gated = values.given("swiglu")
    count = values.whole("num-experts", 0)
    ffn = values.whole("ffn-hidden-size", 0) or (_gated_width(hidden) if gated else 4 * hidden)
    return Transformer(
        layers=values.whole("num-layers", 1),
        hidden=hidden,
        heads=values.whole("num-attention-heads", 1),
        kv_heads=values.whole("num-query-groups", 0) or None if values.given("group-query-attention") else None,
        head_dim=values.whole("kv-channels", 0) or None,
        ffn=ffn,
        vocabulary=vocabulary,
        sequence=values.whole("seq-length", 1),
        gated_mlp=gated,
        untied=values.given("untie-embeddings-and-output-weights"),
        experts=Experts(
            count=count,
            top_k=values.whole("moe-router-topk", 2),
            ffn=values.whole("moe-ffn-hidden-size", 0) or ffn,
        )
        if count
        else None,
    )


def _padded(values: Values, tp: int, vocabulary: int) -> int:
    """Vocabulary with Megatron-LM's padding, to a multiple of tp too; a padded size that is given stays."""
    padded = values.whole("pad-vocab-size-to", values.whole("padded-vocab-size", 0))
    multiple = values.whole("make-vocab-size-divisible-by", PAD_MULTIPLE) * tp
    if multiple < 1:
        raise values.wrong("make-vocab-size-divisible-by", multiple // tp, "a whole number of at least 1")
    return padded or -(-vocabulary // multiple) * multiple


def _gated_width(hidden: int) -> int:
    """Width of a gated feed-forward that is not given: two thirds of 4 h, cut to a multiple of 64."""
    return int((4 * hidden * 2 / 3) / 64) * 64


def _layout(values: Values, *, tp: int, pp: int, gpus: int, layers: int | None) -> Layout:
    cp = values.whole("context-parallel-size", 1)
    dp = values.quotient(gpus, tp * pp * cp, of="tensor x pipeline x context parallel sizes")
    micro = values.whole("micro-batch-size", 1)
    per_stage = values.whole("num-layers-per-virtual-pipeline-stage", 0)
    virtual = layers // (pp * per_stage) if per_stage and layers else 1
    return Layout(
        dp=dp,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=values.whole("expert-model-parallel-size", 1),
        zero=1 if values.given("use-distributed-optimizer") else 0,
        sequence_parallel=values.given("sequence-parallel"),
        virtual=max(virtual, 1),
        microbatches=max(values.whole("global-batch-size", micro * dp) // (micro * dp), 1),
        micro_batch=micro,
    )
