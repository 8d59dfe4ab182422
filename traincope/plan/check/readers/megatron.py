"""Megatron-LM's arguments in a shell script, text or YAML: NVIDIA/Megatron-LM, megatron/training/arguments.py."""

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

from traincope.plan.check.readers.shell import Variables, filled_in, options, script_lines, variables_of
from traincope.plan.check.readers.values import Several, Values
from traincope.plan.check.training_plan import TrainingPlan
from traincope.plan.layout.layout import RING, ULYSSES, Layout, Overlap, Place
from traincope.plan.model.flops import Recompute
from traincope.plan.model.transformer import Experts, Latent, Transformer

MEGATRON = "Megatron-LM"
PAD_MULTIPLE = 128
"""Default of --make-vocab-size-divisible-by."""
GIVE_MODEL = "give --model and --seq"
SIZED = ("vocab-size", "padded-vocab-size", "pad-vocab-size-to")
REQUIRED = ("num-layers", "hidden-size", "num-attention-heads", "seq-length")
YAML = (".yaml", ".yml")
FREQ = "moe-layer-freq"
IN_YAML = re.compile(r"^\s*(?:-\s+)?[\"']?(?:--)?([\w-]+)[\"']?\s*:[ \t]+(.*?)[ \t]*(?:\s#.*)?$", re.MULTILINE)
"""A key with a scalar, of YAML with the arguments as keys, or of `--yaml-cfg`, whose keys have underscores."""
YAML_FALSE, YAML_TRUE = (
    frozenset({"false", "no", "off", "n", "null", "~", "none"}),
    frozenset({"true", "yes", "on", "y"}),
)
YAML_NAMES = {"num_moe_experts": "num-experts"}
"""Keys of `--yaml-cfg` that the command line calls otherwise."""
YAML_FLAGS = {
    "num_query_groups": "group-query-attention",
    "activation_func: swiglu": "swiglu",
    "gated_linear_unit": "swiglu",
}
"""Key of `--yaml-cfg`, or key and value -> the flag of the command line that it implies."""
IN_LINE = re.compile(rf"--{FREQ}[= ]+[\"']?([\[\]()\d,*+ ]+)")
FREQUENCY = re.compile(r"[\d\s\[\],()*+]+")
OPEN = {
    "window-size": "attention in windows",
    "hybrid-override-pattern": "layers of several kinds",
    "hybrid-layer-pattern": "layers of several kinds",
    "hybrid-attention-ratio": "layers of several kinds",
    "is-hybrid-model": "layers of several kinds",
    "linear-attention-freq": "linear attention",
    "linear-attention-type": "linear attention",
    "attention-output-gate": "a gate of its attention",
    "moe-latent-size": "experts in a latent space",
    "experimental-attention-variant": "another attention",
    "heterogeneous-layers-config-path": "layers of several kinds",
    "mtp-num-layers": "multi-token prediction",
    "mlp-type": "experts by DeepSpeed's rule",
    "expert-interval": "experts by DeepSpeed's rule",
    "retro-add-retriever": "a retriever",
    "vision-model-type": "a tower for images",
    "language-model-type": "a tower for images",
    "encoder-num-layers": "an encoder",
    "decoder-num-layers": "a decoder of its own",
    "decoder-first-pipeline-num-layers": "stages of unequal layers",
    "decoder-last-pipeline-num-layers": "stages of unequal layers",
    "pipeline-model-parallel-layout": "stages of unequal layers",
    "account-for-embedding-in-pipeline-split": "stages of unequal layers",
    "account-for-loss-in-pipeline-split": "stages of unequal layers",
}
"""Arguments that change the model in a way without a formula here."""
UNMODELLED = {
    "cpu-offloading": "activations that are offloaded",
    "fine-grained-activation-offloading": "activations that are offloaded",
    "fp8-format": "products in fp8",
    "fp8-hybrid": "products in fp8",
    "fp8-e4m3": "products in fp8",
    "fp4-format": "products in fp4",
    "lora-rank": "adapters (LoRA)",
    "recompute-modules": "chosen modules that are recomputed",
    "expert-tensor-parallel-size": "a tensor-parallel size of experts",
    "hybrid-context-parallel": "hybrid context parallelism",
}
"""Arguments that change memory or speed in a way without a formula here."""
OFFLOADED, FRACTION = ("optimizer-cpu-offload", "cpu-optimizer"), "optimizer-offload-fraction"
"""Arguments that move the optimizer's state to the CPU, and its share there."""
STATE_TYPES = ("main-grads-dtype", "main-params-dtype", "exp-avg-dtype", "exp-avg-sq-dtype")
LEARNED = "learned_absolute"
WHOLE_AGAIN = ("checkpoint-activations", "deepspeed-activation-checkpointing")
"""Older names of full recomputation."""
SHARDED = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""--data-parallel-sharding-strategy -> ZeRO stage."""
GATED = ("swiglu", "quick-geglu")
CP_METHOD, CP_METHODS = "cp-comm-type", {"p2p": RING, "a2a": ULYSSES}
DEEPSPEED = "deepspeed"
ULYSSES_RANKS = "ds-sequence-parallel-size"
"""Arguments of Megatron-DeepSpeed: microsoft/Megatron-DeepSpeed, megatron/arguments.py."""
MEGATRON_FSDP = ("use-megatron-fsdp", "use-custom-fsdp")
MAX_PATTERN = 10_000
"""Most layers in a pattern of experts."""


def is_megatron(text: str) -> bool:
    return any(name in text for name in ("--num-layers", "--tensor-model-parallel-size"))


def is_megatron_yaml(text: str) -> bool:
    return not {"num-layers", "tensor-model-parallel-size"}.isdisjoint(_in_yaml(text))


def _in_yaml(text: str) -> dict[str, object]:
    """Name -> value of each key with a scalar, at any depth. A name that is false is not given."""
    given: dict[str, object] = {}
    for key, value in IN_YAML.findall(text):
        plain = value.strip("\"'")
        if plain.lower() not in YAML_FALSE:
            name = YAML_NAMES.get(key, key.replace("_", "-"))
            _add(given, name, True if plain.lower() in YAML_TRUE else _typed(plain), word=key)
            implied = YAML_FLAGS.get(key) or YAML_FLAGS.get(f"{key}: {plain}")
            if implied is not None:
                given[implied] = True
    return given


def _add(given: dict[str, object], name: str, value: object, *, word: str) -> None:
    """Add an argument. With two values, it is not known which of them the training uses."""
    before = given.get(name, value)
    different = type(before) is not type(value) or before != value
    given[name] = Several(word, (str(before), str(value))) if different else value


def arguments(source: str, text: str) -> Mapping[str, object]:
    """Name -> value of each `--name value`; True for a name alone. Variables of the script are filled in."""
    if source.endswith(YAML):
        return _in_yaml(text)
    lines = script_lines(text)
    variables, given = variables_of(lines), dict[str, object]()
    for line in lines:
        for name, value in options(line):
            content = _filled_in(_expression(line) or value if name == FREQ else value, variables)
            _add(given, name, content, word=f"--{name}")
    return given


def _expression(line: str) -> str:
    """The list of experts' layers as the line has it: brackets are blanks in words. Empty for another value."""
    match = IN_LINE.search(line)
    text = match[1].strip() if match else ""
    while text.count(")") > text.count("("):
        text = text.removesuffix(")")  # the end of the script's array
    return text if "[" in text else ""


def _filled_in(word: str, variables: Variables) -> object:
    value = filled_in(word, variables)
    return value if isinstance(value, Several) else _typed(value)


def _typed(value: str) -> object:
    if value in ("", "\\"):
        return True
    for kind in (int, float):
        try:
            return kind(value.replace("_", "") if kind is int else value)
        except ValueError:
            continue
    return value


def read_megatron(
    source: str, text: str, *, shape: Transformer | None, gpus: int, vocabulary: int | None = None
) -> TrainingPlan:
    """The plan on `gpus` GPUs. `vocabulary`: its size, if the tokenizer decides it.

    Raises UsageError for values of a wrong kind and an impossible layout.
    """
    given = {} if vocabulary is None else {"vocab-size": vocabulary}
    values = Values(source, {"": {**arguments(source, text), **given}}, "")
    tp, pp = values.whole("tensor-model-parallel-size", 1), values.whole("pipeline-model-parallel-size", 1)
    why = "" if shape is not None else _why_open(values)
    shape = shape or (None if why else _shape(values, tp=tp))
    saves = values.given("save")
    experts = values.whole("num-experts", 0) > 0
    return TrainingPlan(
        framework=MEGATRON,
        open_because=why,
        unmodelled=tuple(dict.fromkeys(_unmodelled(values))),
        shape=shape,
        layout=_layout(values, tp=tp, pp=pp, gpus=gpus, layers=None if shape is None else shape.layers),
        tp=tp,
        pp=pp,
        vocabulary=None if shape is None else _padded(values, tp, shape.vocabulary),
        head_dim=None if shape is None else shape.query_width // shape.heads,
        recompute=_recompute(values),
        early_stop=False,
        ordered=values.given("deterministic-mode"),
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
    if granularity == "full" or any(map(values.given, WHOLE_AGAIN)):
        return Recompute.FULL
    selective = granularity == "selective" or values.given("recompute-activations")
    return Recompute.SELECTIVE if selective else Recompute.NONE


def _unmodelled(values: Values) -> Iterator[str]:
    """Yield the settings without a formula."""
    yield from (what for name, what in UNMODELLED.items() if values.given(name))
    if not values.given("bf16") and not values.given("fp16"):
        yield "a training in fp32 (neither --bf16 nor --fp16 is given)"
    optimizer = values.text("optimizer", "adam")
    if optimizer != "adam":
        yield f"the optimizer {optimizer}"
    if values.text("attention-backend", "auto") in ("unfused", "local"):
        yield "attention that is not fused"
    if values.text(CP_METHOD, "p2p") not in CP_METHODS:
        yield f"context parallelism by {values.text(CP_METHOD, '')}"
    if values.text("recompute-method", "uniform") == "block" and values.given("recompute-num-layers"):
        yield "recomputation of some layers"
    if values.given(DEEPSPEED) and not values.given("zero-stage"):
        yield "ZeRO as DeepSpeed's configuration says, without --zero-stage"
    if values.given("zero-offload") or (_offloads(values) and values.number(FRACTION, 1.0) < 1):
        yield "optimizer states that are offloaded in part"
    if any(values.text(name, "fp32") != "fp32" for name in STATE_TYPES):
        yield "optimizer states of other types"
    if values.whole("num-distributed-optimizer-instances", 1) > 1:
        yield "several instances of the distributed optimizer"


def _offloads(values: Values) -> bool:
    return any(map(values.given, OFFLOADED))


def _zero(values: Values) -> int:
    """ZeRO stage, of the distributed optimizer or of FSDP."""
    if values.given("use-torch-fsdp2"):
        return 3
    if any(map(values.given, MEGATRON_FSDP)):
        strategy = values.text("data-parallel-sharding-strategy", "no_shard")
        if strategy not in SHARDED:
            raise values.wrong("data-parallel-sharding-strategy", strategy, f"one of {', '.join(SHARDED)}")
        return SHARDED[strategy]
    if values.given(DEEPSPEED):
        return values.whole("zero-stage", 0)
    return 1 if values.given("use-distributed-optimizer") else 0


def _why_open(values: Values) -> str:
    """Why the arguments do not give the model's shapes; empty if they do."""
    unknown = [what for name, what in OPEN.items() if values.given(name)]
    if values.given(DEEPSPEED) and values.whole("num-experts", 0) > 1:
        unknown.append(OPEN["expert-interval"])
    if values.given("spec") and values.text("spec", "local") != "local":
        unknown.append("layers of a specification (--spec)")
    if unknown:
        return f"the model has {' and '.join(dict.fromkeys(unknown))}, of which no formula is known here; {GIVE_MODEL}"
    lacking = [f"--{name}" for name in REQUIRED if not values.given(name)]
    if lacking:
        return f"the plan does not give {', '.join(lacking)}; {GIVE_MODEL}"
    if not any(values.given(name) for name in SIZED):
        return "the tokenizer decides the size of the vocabulary; give --vocab N"
    return ""


def _pattern(values: Values, layers: int) -> tuple[bool, ...] | None:
    """Mark the blocks that have experts: every N-th from the first on, or a list such as `([0]*3+[1]*58)`."""
    if not values.given(FREQ):
        return None
    if not values.holds_text(FREQ):
        every = values.whole(FREQ, 1)
        if every < 1:
            raise values.wrong(FREQ, every, "a number from 1 on")
        return None if every == 1 else tuple(block % every == 0 for block in range(layers))
    listed = _listed(values.text(FREQ, ""))
    if listed is None or len(listed) != layers:
        raise values.wrong(FREQ, values.text(FREQ, ""), f"a number, or a list of {layers} times 0 or 1")
    return tuple(map(bool, listed))


def _listed(text: str) -> list[int] | None:
    """Value of an expression of lists, sums and multiples; None for anything else."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body if FREQUENCY.fullmatch(text) else None
        value = None if tree is None else _value(tree)
    except (SyntaxError, TypeError, ValueError, RecursionError):
        return None
    return value if isinstance(value, list) and all(each in (0, 1) for each in value) else None


def _value(tree: ast.expr) -> Any:
    match tree:
        case ast.Constant(value=int() as number):
            return number
        case ast.List(elts=parts):
            return [_value(part) for part in parts]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _value(left) + _value(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            first, second = _value(left), _value(right)
            size = next((each for each in (first, second) if isinstance(each, int)), 1)
            if size > MAX_PATTERN:
                raise ValueError(f"{size} layers")
            return first * second
    raise ValueError(ast.dump(tree))


def _shape(values: Values, *, tp: int) -> Transformer:
    """Shapes of arguments that give all of them."""
    vocabulary = _padded(values, tp, values.whole("vocab-size", 0))
    hidden = values.whole("hidden-size", 1)
    gated = any(map(values.given, GATED))
    count = values.whole("num-experts", 0)
    ffn = values.whole("ffn-hidden-size", 0) or (_gated_width(hidden) if gated else 4 * hidden)
    layers, shared = values.whole("num-layers", 1), values.whole("moe-shared-expert-intermediate-size", 0)
    latent = _latent(values)
    own_keys = values.whole("qk-head-dim", 128)
    return Transformer(
        layers=layers,
        hidden=hidden,
        heads=values.whole("num-attention-heads", 1),
        kv_heads=values.whole("num-query-groups", 0) or None if values.given("group-query-attention") else None,
        head_dim=own_keys + latent.rope if latent is not None else values.whole("kv-channels", 0) or None,
        ffn=ffn,
        vocabulary=vocabulary,
        sequence=values.whole("seq-length", 1),
        gated_mlp=gated,
        untied=values.given("untie-embeddings-and-output-weights"),
        positions=_positions(values),
        biases=_has_biases(values),
        experts=Experts(
            count=count,
            top_k=values.whole("moe-router-topk", 2),
            ffn=values.whole("moe-ffn-hidden-size", 0) or ffn,
            shared=1 if shared else 0,
            shared_ffn=shared or None,
            pattern=_pattern(values, layers),
        )
        if count
        else None,
        latent=latent,
    )


def _latent(values: Values) -> Latent | None:
    """Multi-latent attention, with the defaults of Megatron-LM's MLATransformerConfig."""
    if not values.given("multi-latent-attention"):
        return None
    return Latent(
        kv_rank=values.whole("kv-lora-rank", 512),
        rope=values.whole("qk-pos-emb-head-dim", 64),
        value_dim=values.whole("v-head-dim", 128),
        q_rank=values.whole("q-lora-rank", 0) or None,
    )


def _positions(values: Values) -> int:
    """Rows of learned positions."""
    rotary = values.given("use-rotary-position-embeddings") or values.given("no-position-embedding")
    if rotary or values.text("position-embedding-type", LEARNED) != LEARNED:
        return 0
    return values.whole("max-position-embeddings", 0)


def _has_biases(values: Values) -> bool:
    """Whether kernels of their own sum the gradients of biases. Transformer Engine sums them in its products."""
    is_local = values.text("transformer-impl", "transformer_engine") == "local" or values.given("use-legacy-models")
    return is_local and not values.given("disable-bias-linear")


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
    ulysses = values.whole(ULYSSES_RANKS, 1)
    cp = values.whole("context-parallel-size", 1) * ulysses
    dp = values.quotient(gpus, tp * pp * cp, of="tensor x pipeline x context parallel sizes")
    micro = values.whole("micro-batch-size", 1)
    per_stage = values.whole("num-layers-per-virtual-pipeline-stage", 0)
    virtual = layers // (pp * per_stage) if per_stage and layers else 1
    virtual = values.whole("num-virtual-stages-per-pipeline-rank", virtual)
    return Layout(
        dp=dp,
        tp=tp,
        pp=pp,
        cp=cp,
        cp_method=ULYSSES if ulysses > 1 else CP_METHODS.get(values.text(CP_METHOD, "p2p"), RING),
        ep=values.whole("expert-model-parallel-size", 1),
        zero=_zero(values),
        optimizer_place=Place.CPU if _offloads(values) else Place.DEVICE,
        sequence_parallel=values.given("sequence-parallel"),
        virtual=max(virtual, 1),
        microbatches=max(values.whole("global-batch-size", micro * dp) // (micro * dp), 1),
        micro_batch=micro,
        overlap=Overlap.ALL if values.given("tp-comm-overlap") else Overlap.GRADIENTS,
        scatter_gather=not values.given("no-scatter-gather-tensors-in-pipeline"),
        fused_sums=not values.given("no-gradient-accumulation-fusion"),
    )
