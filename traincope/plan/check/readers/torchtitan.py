"""torchtitan's TOML and Python: pytorch/torchtitan, torchtitan/config, with its defaults."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import replace

from traincope.errors import UsageError
from traincope.plan.check.readers.values import Values
from traincope.plan.check.training_plan import TrainingPlan
from traincope.plan.layout.layout import Layout, Overlap, Place
from traincope.plan.model.flops import Recompute
from traincope.plan.model.sources import PRESETS
from traincope.plan.model.transformer import Transformer

TABLES = ("parallelism", "training", "checkpoint", "activation_checkpoint")
"""Tables whose values a Python function must not compute."""
NO_PIPELINE = (
    "pipeline_parallel_layers_per_stage",
    "module_fqns_per_model_part",
    "pipeline_parallel_split_points",
    "pipeline_parallel_schedule_csv",
)
"""Settings that place layers on stages in a way without a formula here."""
READ_TOO = ("optimizer", "model")
CONVERTERS, SPEC, REGISTRY = "model_converters", "model_spec", "model_registry"
ATTENTION_BACKEND = "attn_backend"
"""Argument of the registry that changes no shape."""
HARMLESS = frozenset(
    {
        *("job", "profiling", "profiler", "metrics", "lr_scheduler", "compile", "comm", "memory_estimation", "debug"),
        *("experimental", "validation", "validator", "dataloader", "tokenizer", "hf_assets_path", "dump_folder"),
        *("float8", "mx", "quantize", "loss", "fault_tolerance", CONVERTERS, SPEC),
    }
)
"""Other tables, which change neither memory nor speed, or only with the converters and settings that are read."""
KNOWN_PARALLELISM = frozenset(
    {
        *("data_parallel_replicate_degree", "data_parallel_shard_degree", "fsdp_reshard_after_forward"),
        *("tensor_parallel_degree", "disable_loss_parallel", "enable_async_tensor_parallel"),
        *("enable_sequence_parallel", "enable_fsdp_symm_mem", "enable_compiled_autograd", "full_dtensor"),
        *("pipeline_parallel_degree", "pipeline_parallel_schedule", "pipeline_parallel_microbatch_size"),
        *("pipeline_parallel_first_stage_less_layers", "pipeline_parallel_last_stage_less_layers"),
        *("pipeline_parallel_expert_parallel_overlap", "pipeline_parallel_microbatches", *NO_PIPELINE),
        *("context_parallel_degree", "context_parallel_rotate_method", "context_parallel_load_balancer"),
        *("expert_parallel_degree", "expert_tensor_parallel_degree", "expert_parallel_comm_backend"),
    }
)
OPTIMIZERS = ("OptimizersContainer.Config", "OptimizerConfig", "Optimizer", "Config")
"""Calls that configure an optimizer whose step follows the whole backward."""
ADAM = "AdamW"
SCHEDULES = {"1F1B": "1f1b", "GPipe": "gpipe", "Interleaved1F1B": "interleaved", "ZBVZeroBubble": "zb-v"}
OLD_COUNT = "pipeline_parallel_microbatches"
OLDER = {
    "data_parallel_degree": "data_parallel_shard_degree",
    **{
        name: name
        for name in (
            *("data_parallel_replicate_degree", "data_parallel_shard_degree", "tensor_parallel_degree"),
            *("pipeline_parallel_degree", "pipeline_parallel_schedule", "pipeline_parallel_split_points"),
            *("context_parallel_degree", "enable_async_tensor_parallel", OLD_COUNT),
        )
    },
}
"""Names in [training] and [experimental] before there was [parallelism] -> today's."""
FLOAT8, OFFLOAD = "enable_float8_linear", "enable_cpu_offload"
NO_SCHEDULE = f"its pipeline schedule has no formula here; known are {', '.join(SCHEDULES)}"


def is_torchtitan(tables: Mapping[str, object]) -> bool:
    return "parallelism" in tables or ("training" in tables and "job" in tables)


def python_tables(source: str, text: str, *, name: str | None) -> dict[str, dict[str, object]] | None:
    """Tables of a configuration that a Python function returns, as `torchtitan/models/*/config_registry.py` has them.

    Literal values count. `name`: the function; without it, the only one. None if no function makes such a
    configuration. Raises UsageError for another name, several functions without a name, tables that the function
    computes, and text that is not Python.
    """
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UsageError(f"{source} is not valid Python: {error}; correct that place") from error
    functions = [each for each in module.body if isinstance(each, ast.FunctionDef)]
    made = {each.name: tables for each in functions if (tables := _tables_of(each)) is not None}
    if not made:
        return None
    if name is None and len(made) > 1:
        raise UsageError(f"{source} has several configurations; give one, e.g. {source}:{next(iter(made))}")
    if name is not None and name not in made:
        known = name in {each.name for each in functions}
        what = f"{name} of {source} changes another configuration" if known else f"{source} has no configuration {name}"
        raise UsageError(f"{what}; give one of {', '.join(made)}")
    chosen = next(each for each in functions if each.name == (name or next(iter(made))))
    computed = next(_computed(chosen), None)
    if computed is not None:
        raise UsageError(f"{source}: {chosen.name} computes {computed}; write the values into its call")
    return made[chosen.name]


def _computed(function: ast.FunctionDef) -> Iterator[str]:
    """Tables whose values are not all in the call that makes them."""
    for node in ast.walk(function):
        if isinstance(node, ast.keyword) and node.arg in TABLES:
            call = node.value
            is_open = isinstance(call, ast.Call) and (call.args or any(each.arg is None for each in call.keywords))
            if is_open or not isinstance(call, ast.Call):
                yield node.arg
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            inside = (each for target in targets for each in ast.walk(target))
            yield from (each.attr for each in inside if isinstance(each, ast.Attribute) and each.attr in TABLES)
            replaced = (each.attr for each in targets if isinstance(each, ast.Attribute))
            yield from (name for name in replaced if name in ("optimizer", CONVERTERS, SPEC))


def _tables_of(function: ast.FunctionDef) -> dict[str, dict[str, object]] | None:
    """Literal values in the calls that configure each table; None if none configures parallelism or training."""
    tables: dict[str, dict[str, object]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.keyword) and node.arg in (*TABLES, *READ_TOO) and isinstance(node.value, ast.Call):
            named = {each.arg: each.value for each in node.value.keywords if each.arg is not None}
            tables[node.arg] = {name: value for name, tree in named.items() if (value := _literal(tree)) is not None}
            if node.arg == "optimizer" and (made := ast.unparse(node.value.func)) not in OPTIMIZERS:
                tables[node.arg].setdefault("name", made)
    if not {"training", "parallelism"} & tables.keys():
        return None
    for call in ast.walk(function):
        if isinstance(call, ast.Call) and {each.arg for each in call.keywords} & {*TABLES, SPEC}:
            others = {each.arg: each.value for each in call.keywords if each.arg is not None}
            tables |= {name: {} for name in others if name not in tables}
            tables["model"] = {**tables.get("model", {}), **dict(_model(function.name, others))}
    return tables


def _model(configuration: str, arguments: Mapping[str, ast.expr]) -> Iterator[tuple[str, object]]:
    """Yield name and flavor of the model, as its registry has them, and what converts its modules.

    The name is the first word of that of the configuration: `llama3_8b`.
    """
    spec, converters = arguments.get(SPEC), arguments.get(CONVERTERS)
    if isinstance(spec, ast.Call) and ast.unparse(spec.func).endswith(REGISTRY):
        flavor = _literal(spec.args[0]) if spec.args else None
        yield from (("name", configuration.partition("_")[0]), ("flavor", str(flavor)))
        more = [each.value for each in spec.keywords if each.arg != ATTENTION_BACKEND]
        converters = ast.List(elts=more) if more else converters
    if converters is None:
        return
    made = [
        ast.unparse(each.func).removesuffix(".Config")
        for each in ast.walk(converters)
        if isinstance(each, ast.Call) and each is not converters
    ]
    if made or not isinstance(converters, ast.Call) or converters.args or converters.keywords:
        yield "converters", ", ".join(made) or ast.unparse(converters)


def _literal(tree: ast.expr) -> object:
    """Return the value; of an expression its text, which no reader takes for a number."""
    try:
        return ast.literal_eval(tree)
    except (TypeError, ValueError, SyntaxError, RecursionError):
        return ast.unparse(tree)


def read_torchtitan(source: str, tables: Mapping[str, object], *, shape: Transformer | None, gpus: int) -> TrainingPlan:
    """The plan on `gpus` GPUs. `shape`: the model; None: the flavor's, if it is a preset.

    Raises UsageError for values of a wrong kind and an impossible layout.
    """
    tables = _as_today(source, tables)
    parallel, training = Values(source, tables, "parallelism"), Values(source, tables, "training")
    checkpoint, recompute = Values(source, tables, "checkpoint"), Values(source, tables, "activation_checkpoint")
    tp = parallel.whole("tensor_parallel_degree", 1)
    pp = parallel.whole("pipeline_parallel_degree", 1)
    layout, why = _layout(parallel, training, tp=tp, pp=pp, gpus=gpus)
    model = Values(source, tables, "model")
    shape = shape or _flavor(model, training)
    saves = checkpoint.flag("enable", checkpoint.flag("enable_checkpoint", False))
    mode = recompute.text("mode", "selective")
    optimizer = Values(source, tables, "optimizer").text("name", ADAM)
    return TrainingPlan(
        framework="torchtitan",
        open_because=why,
        unmodelled=tuple(_unmodelled(parallel, training, model, pp=pp, optimizer=optimizer))
        + (("products in float8",) if Values(source, tables, "float8").get(FLOAT8) else ())
        + tuple(_unknown(source, tables)),
        shape=shape,
        layout=layout,
        tp=tp,
        pp=pp,
        vocabulary=None if shape is None else shape.vocabulary,
        head_dim=None if shape is None else shape.query_width // shape.heads,
        recompute={"none": Recompute.NONE, "full": Recompute.FULL}.get(mode),
        clips=training.number("max_norm", 1.0) > 0,
        optimizer_states="fp32",
        steps=training.whole("steps", 10_000),
        checkpoint_steps=checkpoint.whole("interval", 500) if saves else None,
        saves=saves,
        blocking_saves=checkpoint.text("async_mode", "disabled") == "disabled" if saves else None,
        watches_stragglers=False,
    )


def _unknown(source: str, tables: Mapping[str, object]) -> Iterator[str]:
    """Yield what is not known here, and may change memory and speed."""
    yield from (f"the table {name}" for name in tables if name not in HARMLESS.union(TABLES, READ_TOO))
    degrees = tables.get("parallelism")
    if isinstance(degrees, Mapping):
        yield from (f"parallelism.{name}" for name in degrees if name not in KNOWN_PARALLELISM)
    if Values(source, tables, "fault_tolerance").get("enable"):
        yield "replicas that may fail (fault_tolerance)"


def _as_today(source: str, tables: Mapping[str, object]) -> Mapping[str, object]:
    """The tables with the degrees of parallelism where they are today."""
    found: dict[str, object] = {}
    for name in ("training", "experimental"):
        table = Values(source, tables, name)
        found |= {today: table.get(older) for older, today in OLDER.items() if table.given(older)}
    if not found:
        return tables
    given = tables.get("parallelism")
    return {**tables, "parallelism": {**found, **(given if isinstance(given, Mapping) else {})}}


def _flavor(model: Values, training: Values) -> Transformer | None:
    """The preset of `name` and `flavor`; None for others, whose shapes are in torchtitan's code."""
    preset = PRESETS.get(f"{model.text('name', '')}-{model.text('flavor', '').lower()}")
    return None if preset is None else replace(preset, sequence=training.whole("seq_len", 2_048))


def _unmodelled(parallel: Values, training: Values, model: Values, *, pp: int, optimizer: str) -> Iterator[str]:
    """Yield the settings without a formula."""
    if pp > 1 and training.flag(OFFLOAD, False):
        yield "weights and optimizer states that are offloaded with a pipeline"
    if training.text("dtype", "float32") != "float32":
        yield f"a training in {training.text('dtype', '')} without wide weights"
    if training.text("mixed_precision_param", "bfloat16") != "bfloat16":
        yield "a training in fp32 (mixed_precision_param)"
    if parallel.whole("expert_tensor_parallel_degree", 1) > 1:
        yield "a tensor-parallel size of experts"
    if optimizer not in (ADAM, "Adam"):
        yield f"the optimizer {optimizer}"
    if model.get("converters"):
        yield f"converters of the model: {model.get('converters')}"
    if pp == 1 and parallel.text("fsdp_reshard_after_forward", "default") == "never":
        yield "weights that stay gathered (fsdp_reshard_after_forward)"
    if pp > 1 and any(parallel.get(name) for name in NO_PIPELINE):
        yield "layers on stages by its own rule"
    if pp > 1 and training.whole("global_batch_size", -1) > 0:
        yield "several passes of the pipeline in a step (global_batch_size)"


def _layout(parallel: Values, training: Values, *, tp: int, pp: int, gpus: int) -> tuple[Layout | None, str]:
    """Layout, or None and why no formula has it."""
    schedule = SCHEDULES.get(parallel.text("pipeline_parallel_schedule", "1F1B"))
    if schedule is None and pp > 1:
        return None, NO_SCHEDULE
    cp = parallel.whole("context_parallel_degree", 1)
    dp = parallel.quotient(gpus, tp * pp * cp, of="tensor x pipeline x context parallel degrees")
    replicas = parallel.whole("data_parallel_replicate_degree", 1)
    shards = parallel.whole("data_parallel_shard_degree", -1)
    if replicas < 1 or dp % replicas or shards not in (-1, dp // replicas):
        raise parallel.wrong("data_parallel_shard_degree", shards, f"-1, or degrees whose product is {dp}")
    is_sharded = dp * cp > replicas
    local = training.whole("local_batch_size", training.whole("batch_size", 8))
    whole = training.whole("global_batch_size", -1)
    count = parallel.whole(OLD_COUNT, 0)
    size = local // count if 0 < count <= local else parallel.whole("pipeline_parallel_microbatch_size", 1)
    micro = size if pp > 1 else local
    zero = (1 if pp > 1 else 3) if is_sharded else 0
    sequences = local if whole < 0 or pp > 1 else max(whole // dp, 1)
    try:
        layout = Layout(
            dp=dp,
            tp=tp,
            pp=pp,
            cp=cp,
            ep=parallel.whole("expert_parallel_degree", 1),
            zero=zero,
            parameters_place=Place.CPU if zero == 3 and training.flag(OFFLOAD, False) else Place.DEVICE,
            replicas=replicas if is_sharded else 1,
            schedule=schedule or "1f1b",
            microbatches=max(sequences // micro, 1),
            micro_batch=micro,
            overlap=Overlap.ALL if parallel.get("enable_async_tensor_parallel") else Overlap.DATA,
            fused_sums=False,
            sequence_parallel=parallel.flag("enable_sequence_parallel", True),
        )
    except UsageError as refusal:
        return None, f"no formula here has its layout ({refusal})"
    return layout, ""
