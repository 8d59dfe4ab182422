"""Plans as the readers take them, by the rules of each framework."""

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from traincope.errors import UsageError
from traincope.plan.check.readers.deepspeed import plain_json, read_deepspeed
from traincope.plan.check.readers.megatron import read_megatron
from traincope.plan.check.readers.others import other_yaml
from traincope.plan.check.readers.torchtitan import python_tables, read_torchtitan
from traincope.plan.check.registry import unjudged
from traincope.plan.check.training_plan import TrainingPlan
from traincope.plan.layout.layout import ULYSSES, Layout, Overlap, Place
from traincope.plan.model.flops import Recompute
from traincope.plan.model.sources import PRESETS
from traincope.plan.model.transformer import Latent

SHAPES = "--bf16 --num-layers 2 --hidden-size 4096 --num-attention-heads 32 --seq-length 128 --vocab-size 50257"


def megatron(arguments: str) -> TrainingPlan:
    return read_megatron("train.sh", f"{SHAPES} {arguments}", shape=None, gpus=8)


@pytest.mark.parametrize(("arguments", "ffn"), [("", 16_384), ("--swiglu", 10_880), ("--ffn-hidden-size 512", 512)])
def test_megatron_cuts_the_width_of_a_gated_feed_forward(arguments: str, ffn: int) -> None:
    """8 x 4096 / 3 = 10,922.67, which is 170.67 x 64."""
    shape = megatron(arguments).shape
    assert shape is not None
    assert shape.ffn == ffn


@pytest.mark.parametrize(
    ("arguments", "vocabulary"),
    [
        ("", 50_304),
        ("--tensor-model-parallel-size 8", 51_200),
        ("--make-vocab-size-divisible-by 1", 50_257),
        ("--padded-vocab-size 50260", 50_260),
    ],
)
def test_megatron_pads_the_vocabulary(arguments: str, vocabulary: int) -> None:
    """393 x 128 = 50,304, and 50 x 128 x 8 = 51,200."""
    plan = megatron(arguments)
    assert plan.shape is not None
    assert plan.vocabulary == plan.shape.vocabulary == vocabulary


def test_the_type_of_squares_is_that_of_squares() -> None:
    assert megatron("--exp-avg-dtype fp16").optimizer_states == "fp32"
    assert megatron("--exp-avg-sq-dtype fp16").optimizer_states == "fp16"


@pytest.mark.parametrize("other", ["4", "${1:-4}"])
def test_a_variable_with_two_values_is_not_guessed(other: str) -> None:
    script = f"TP=8\nif small; then\n  TP={other}\nfi\nUNUSED=1\nUNUSED=2\n"
    with pytest.raises(UsageError, match=r"train\.sh: \$TP is .* and 8; write the value that the training uses"):
        read_megatron("train.sh", script + "--num-layers 2 --tensor-model-parallel-size $TP", shape=None, gpus=8)
    plan = read_megatron("train.sh", script + "TP=8\n--num-layers 2", shape=None, gpus=8)
    assert plan.tp == 1


@pytest.mark.parametrize(
    ("table", "micro_batch", "microbatches"),
    [
        ({"train_batch_size": 64}, 8, 1),
        ({"train_batch_size": 64, "gradient_accumulation_steps": 4}, 2, 4),
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2}, 2, 4),
        ({"gradient_accumulation_steps": 4}, 1, 4),
    ],
)
def test_deepspeed_completes_the_batch(table: dict[str, object], micro_batch: int, microbatches: int) -> None:
    plan = read_deepspeed("ds.json", table, shape=None, gpus=8)
    assert plan.layout == Layout(
        dp=8, micro_batch=micro_batch, microbatches=microbatches, overlap=Overlap.DATA, fused_sums=False
    )


def test_a_batch_that_deepspeed_cannot_divide_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"train_batch_size is 60; give a multiple of data ranks x microbatch x acc.* = 8"
    ):
        read_deepspeed("ds.json", {"train_batch_size": 60}, shape=None, gpus=8)


def test_deepspeeds_table_of_checkpointing_only_configures() -> None:
    plan = read_deepspeed("ds.json", {"activation_checkpointing": {"partition_activations": True}}, shape=None, gpus=8)
    assert plan.recompute is None


YAML_PLAN = """
MODEL_ARGS:
  --num-layers: 12
  --hidden-size: 512
  --num-attention-heads: 8
  --seq-length: 1024
  --vocab-size: 32000  # of the tokenizer
  --tensor-model-parallel-size: 2
  --pipeline-model-parallel-size: 2
  --swiglu: false
  --save: /ckpt
  --save-interval: 1000
  --async-save: true
"""


def test_megatrons_yaml_is_read() -> None:
    plan = read_megatron("model.yaml", YAML_PLAN, shape=None, gpus=16)
    assert plan.shape is not None
    assert (plan.shape.layers, plan.shape.hidden, plan.shape.gated_mlp, plan.vocabulary) == (12, 512, False, 32_000)
    assert plan.layout is not None
    assert (plan.layout.dp, plan.tp, plan.pp) == (4, 2, 2)
    assert (plan.saves, plan.checkpoint_steps, plan.blocking_saves) == (True, 1000, False)


@pytest.mark.parametrize(
    ("options", "overlap", "fused"),
    [
        ("", Overlap.GRADIENTS, True),
        ("--tp-comm-overlap", Overlap.ALL, True),
        ("--no-gradient-accumulation-fusion", Overlap.GRADIENTS, False),
    ],
)
def test_megatrons_overlap_is_read(options: str, overlap: Overlap, fused: bool) -> None:
    """Its recomputation repeats whole blocks."""
    script = f"python pretrain_gpt.py --tensor-model-parallel-size 2 --num-layers 2 {options}"
    plan = read_megatron("train.sh", script, shape=None, gpus=2)
    assert plan.layout is not None
    assert (plan.layout.overlap, plan.layout.fused_sums, plan.early_stop) == (overlap, fused, False)


def test_the_yaml_of_yaml_cfg_is_read() -> None:
    text = (
        "language_model:\n  num_layers: 2\n  hidden_size: 64\n  num_attention_heads: 4\n  num_query_groups: 2\n"
        "  ffn_hidden_size: null\nmodel_parallel:\n  tensor_model_parallel_size: 2\nseq_length: 128\nvocab_size: 1000\n"
    )
    plan = read_megatron("gpt.yml", text, shape=None, gpus=2)
    assert plan.shape is not None
    assert (plan.tp, plan.shape.kv_heads, plan.shape.ffn, plan.shape.sequence) == (2, 2, 256, 128)


def test_keys_of_yaml_cfg_have_the_names_of_the_command_line() -> None:
    """`swiglu: off` gives no gate, and experts have another name there."""
    text = (
        "num_layers: 2\nhidden_size: 64\nnum_attention_heads: 4\nseq_length: 128\nvocab_size: 1000\n"
        "num_moe_experts: 8\nmoe_router_topk: 2\nactivation_func: {}\nuntie_embeddings_and_output_weights: no\n"
    )
    gated, plain = (read_megatron("g.yml", text.format(how), shape=None, gpus=1).shape for how in ("swiglu", "gelu"))
    assert gated is not None
    assert plain is not None
    assert gated.experts is not None
    assert (gated.gated_mlp, plain.gated_mlp, gated.untied, gated.experts.count) == (True, False, False, 8)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            "g.yml",
            "encoder:\n  num_layers: 12\ndecoder:\n  num_layers: 6\nhidden_size: 64\nnum_attention_heads: 4\n"
            "seq_length: 128\nvocab_size: 1000\n",
        ),
        (
            "t.sh",
            "N='--num-layers 80'\nN='--num-layers 12'\n--hidden-size 64 --num-attention-heads 4 --seq-length 128 "
            "--vocab-size 1000",
        ),
    ],
)
def test_an_argument_with_two_values_is_refused(source: str, text: str) -> None:
    with pytest.raises(UsageError, match="write the value that the training uses"):
        read_megatron(source, text, shape=None, gpus=1)


MOE = (
    "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 128 --vocab-size 1024 --num-experts 8 "
    "--moe-ffn-hidden-size 256 --moe-router-topk 1"
)


@pytest.mark.parametrize(
    ("frequency", "pattern"),
    [
        ("", None),
        ("--moe-layer-freq 1", None),
        ("--moe-layer-freq 2", (True, False, True, False)),
        ("--moe-layer-freq 3", (True, False, False, True)),
        ("--moe-layer-freq ([0,1]*2)", (False, True, False, True)),
        ("--moe-layer-freq '([0]*1+[1]*3)'", (False, True, True, True)),
        ("--moe-layer-freq=[1,0,0,1]", (True, False, False, True)),
    ],
)
def test_experts_are_in_the_layers_of_the_frequency(frequency: str, pattern: tuple[bool, ...] | None) -> None:
    shape = read_megatron("train.sh", f"{MOE} {frequency}", shape=None, gpus=8).shape
    assert shape is not None
    assert shape.experts is not None
    assert shape.experts.pattern == pattern
    assert shape.expert_layers == (4 if pattern is None else sum(pattern))


@pytest.mark.parametrize("frequency", ["0", "-2"])
def test_a_frequency_below_one_is_refused(frequency: str) -> None:
    with pytest.raises(UsageError, match="give a number from 1 on"):
        read_megatron("train.sh", f"{MOE} --moe-layer-freq {frequency}", shape=None, gpus=8)


@pytest.mark.parametrize("frequency", ["[1]*3", "([0,1]*2)*2", "[2]*4", "$FREQ", "[1]*99999999999"])
def test_a_frequency_that_does_not_fit_the_layers_is_refused(frequency: str) -> None:
    with pytest.raises(UsageError, match=r"moe-layer-freq is .* give a number, or a list of 4 times 0 or 1"):
        read_megatron("train.sh", f"{MOE} --moe-layer-freq {frequency}", shape=None, gpus=8)


def test_a_shared_expert_is_counted() -> None:
    shape = read_megatron("train.sh", f"{MOE} --moe-shared-expert-intermediate-size 128", shape=None, gpus=8).shape
    assert shape is not None
    assert shape.experts is not None
    assert shape.experts.shared_width == 128


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        ("--window-size 128,0", "the model has attention in windows"),
        ("--hybrid-override-pattern M-M*-", "the model has layers of several kinds"),
        ("--mtp-num-layers 1", "the model has multi-token prediction"),
        ("--deepspeed --zero-stage 1 --num-experts 16", "the model has experts by DeepSpeed's rule"),
        ("--num-experts 16 --mlp-type residual", "the model has experts by DeepSpeed's rule"),
        ("--vision-model-type clip --freeze-ViT", "the model has a tower for images"),
        ("--linear-attention-type gated_delta_net", "the model has linear attention"),
        ("--decoder-last-pipeline-num-layers 1", "the model has stages of unequal layers"),
        ("--spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec", "layers of a specification"),
    ],
)
def test_a_model_without_a_formula_leaves_its_rules_open(argument: str, reason: str) -> None:
    plan = megatron(argument)
    assert plan.shape is None
    assert reason in plan.open_because
    assert "give --model and --seq" in plan.open_because
    names = {rule.name for rule, why in unjudged(plan) if why == plan.open_because}
    assert names == {"does-not-fit", "checkpoint-cadence", "odd-vocabulary", "odd-heads"}


def test_a_vocabulary_of_the_tokenizer_can_be_given() -> None:
    script = SHAPES.replace("--vocab-size 50257", "--tokenizer-type Llama2Tokenizer")
    plan = read_megatron("train.sh", script, shape=None, gpus=8)
    assert (plan.shape, plan.open_because) == (
        None,
        "the tokenizer decides the size of the vocabulary; give --vocab N",
    )
    given = read_megatron("train.sh", script, shape=None, gpus=8, vocabulary=50257)
    assert (given.vocabulary, given.open_because) == (50_304, "")


def test_a_variable_with_two_values_that_no_rule_needs_does_not_matter() -> None:
    script = f"VOCAB=/data/vocab.json\nVOCAB=/home/vocab.json\npython x.py {SHAPES} --vocab-file $VOCAB"
    assert read_megatron("train.sh", script, shape=None, gpus=8).vocabulary == 50_304


@pytest.mark.parametrize("key", ["train_micro_batch_size_per_gpu", "train_batch_size"])
def test_what_deepspeed_leaves_to_the_training_is_open(key: str) -> None:
    table = {key: "auto", "gradient_clipping": "auto", "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"}}
    plan = read_deepspeed("ds.json", table, shape=PRESETS["llama3-8b"], gpus=8)
    assert (plan.layout, plan.clips, plan.open_because) == (
        None,
        None,
        f"{key}: auto; write the numbers of the training",
    )
    open_rules = {rule.name: why for rule, why in unjudged(plan)}
    assert open_rules["does-not-fit"] == plan.open_because
    assert "gradient_clipping is auto" in open_rules["no-clipping"]
    assert "odd-vocabulary" not in open_rules


def test_an_error_behind_comments_is_at_its_own_line_and_column() -> None:
    text = '{ /* one\n two\n three */ "a": 1, // four\n # five\n "b": x}'
    with pytest.raises(json.JSONDecodeError) as refused:
        json.loads(plain_json(text))
    assert (refused.value.lineno, refused.value.colno) == (5, 7)


def test_comments_of_hjson_are_no_values() -> None:
    text = '{ # all\n "a": "x // y # z", // one\n /* two\n lines */ "b": [1, 2,], \n}'
    assert json.loads(plain_json(text)) == {"a": "x // y # z", "b": [1, 2]}


PYTHON = """
from torchtitan.trainer import Trainer


def llama3_8b() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("8B"),
        training=TrainingConfig(local_batch_size=4, seq_len=8192, steps=1000, max_norm=-1.0),
        parallelism=ParallelismConfig(tensor_parallel_degree=2),
        checkpoint=CheckpointManager.Config(enable=True, interval=500),
        activation_checkpoint=ActivationCheckpointConfig(mode="full"),
    )


def llama3_70b() -> Trainer.Config:
    return Trainer.Config(training=TrainingConfig(local_batch_size=BATCH))
"""


def test_torchtitans_python_is_read_without_running_it() -> None:
    tables = python_tables("registry.py", PYTHON, name="llama3_8b")
    assert tables is not None
    plan = read_torchtitan("registry.py", tables, shape=None, gpus=8)
    assert plan.layout == Layout(dp=4, tp=2, zero=3, micro_batch=4, overlap=Overlap.DATA, fused_sums=False)
    assert (plan.steps, plan.clips, plan.saves, plan.checkpoint_steps) == (1000, False, True, 500)
    assert plan.recompute is Recompute.FULL


@pytest.mark.parametrize(
    ("name", "message"),
    [(None, "give one, e.g. r.py:llama3_8b"), ("x", "r.py has no configuration x; give one of llama3_8b")],
)
def test_a_configuration_in_python_is_chosen_by_its_name(name: str | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        python_tables("r.py", PYTHON, name=name)


@pytest.mark.parametrize(
    "computed", ["training=TRAIN", "training=TrainingConfig(**common)", "training=TrainingConfig(4)"]
)
def test_a_table_that_python_computes_is_refused(computed: str) -> None:
    text = f"def a():\n    return Config(parallelism=P(tensor_parallel_degree=2), {computed})\n"
    with pytest.raises(UsageError, match=r"r\.py: a computes training; write the values into its call"):
        python_tables("r.py", text, name=None)


def test_a_table_that_is_changed_later_is_refused() -> None:
    text = "def a():\n    c = Config(parallelism=P(x=2))\n    c.parallelism.tensor_parallel_degree = 4\n    return c\n"
    text += "def b():\n    c = a()\n    return c\n"
    with pytest.raises(UsageError, match=r"r\.py: a computes parallelism"):
        python_tables("r.py", text, name="a")
    with pytest.raises(UsageError, match=r"b of r\.py changes another configuration; give one of a"):
        python_tables("r.py", text, name="b")


def test_a_value_that_python_computes_is_refused() -> None:
    tables = python_tables("r.py", PYTHON, name="llama3_70b")
    assert tables is not None
    with pytest.raises(UsageError, match="local_batch_size is 'BATCH'; give a whole number"):
        read_torchtitan("r.py", tables, shape=None, gpus=8)


def test_other_python_is_no_configuration() -> None:
    assert python_tables("train.py", "def main():\n    train(steps=1)\n", name=None) is None
    with pytest.raises(UsageError, match=r"train\.py is not valid Python"):
        python_tables("train.py", "def main(:\n", name=None)


@pytest.mark.parametrize(
    "argument", ["--num-layers-per-virtual-pipeline-stage 1", "--num-virtual-stages-per-pipeline-rank 2"]
)
def test_both_spellings_of_virtual_stages_are_read(argument: str) -> None:
    script = SHAPES.replace("--num-layers 2", "--num-layers 4")
    plan = read_megatron(
        "x.sh", f"{script} --pipeline-model-parallel-size 2 --global-batch-size 8 {argument}", shape=None, gpus=8
    )
    assert plan.layout is not None
    assert plan.layout.virtual == 2


@pytest.mark.parametrize(
    ("script", "tp", "pp"),
    [
        ("TP=2; PP=4\n", 2, 4),
        ("export TP=2 PP=4\n", 2, 4),
        ("TP=${TP:-2}\nPP=$((TP * 2))\n", 2, 4),
        ("N=8\nTP=2\nPP=$(( ($N - 4) / 1 ))\n", 2, 4),
        (": ${TP:=2}\nHALF=$TP\nPP=$((HALF + 2)) # four\n", 2, 4),
        ("if [ $SMALL ]; then TP=2; fi\nlocal PP='4'\n", 2, 4),
    ],
)
def test_variables_of_a_script_are_filled_in(script: str, tp: int, pp: int) -> None:
    text = f"{script}train {SHAPES} --tensor-model-parallel-size $TP --pipeline-model-parallel-size ${{PP}}"
    plan = read_megatron("train.sh", text, shape=None, gpus=8)
    assert (plan.tp, plan.pp) == (tp, pp)


@pytest.mark.parametrize("value", ["$TP", "$((GPUS / NODES))", "${TP}", "$((1 / 0))", "$(nproc)", "$A"])
def test_a_value_that_the_script_computes_is_refused(value: str) -> None:
    script = f"A=$B\nB=$A\ntrain {SHAPES} --tensor-model-parallel-size {value}"
    with pytest.raises(UsageError, match=r"tensor-model-parallel-size is .*; give a whole number"):
        read_megatron("train.sh", script, shape=None, gpus=8)


def open_rules(plan: TrainingPlan) -> dict[str, str]:
    return {rule.name: why for rule, why in unjudged(plan)}


@pytest.mark.parametrize(
    ("argument", "what"),
    [
        ("--optimizer-cpu-offload --optimizer-offload-fraction 0.5", "optimizer states that are offloaded in part"),
        ("--use-precision-aware-optimizer --exp-avg-dtype bf16", "optimizer states of other types"),
        ("--cpu-offloading --cpu-offloading-num-layers 4", "activations that are offloaded"),
        ("--fp8-format hybrid", "products in fp8"),
        ("--optimizer muon", "the optimizer muon"),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 4", "of some layers"),
        ("--num-distributed-optimizer-instances 2", "several instances"),
        ("--fp8-hybrid", "products in fp8"),
        ("--attention-backend unfused", "attention that is not fused"),
        ("--context-parallel-size 2 --cp-comm-type a2a+p2p", "context parallelism by a2a"),
        ("--lora-rank 8", "adapters"),
        ("--deepspeed --deepspeed_config ds.json", "ZeRO as DeepSpeed's configuration says"),
        ("--deepspeed --zero-stage 1 --zero-offload", "optimizer states that are offloaded"),
    ],
)
def test_a_setting_without_a_formula_leaves_memory_and_speed_open(argument: str, what: str) -> None:
    why = open_rules(megatron(argument))["does-not-fit"]
    assert "no formula here has" in why
    assert what in why
    assert "does-not-fit" not in open_rules(megatron(""))


@pytest.mark.parametrize(
    "argument",
    ["--optimizer-cpu-offload --use-precision-aware-optimizer", "--deepspeed --zero-stage 1 --cpu-optimizer"],
)
def test_megatrons_optimizer_on_the_cpu_has_a_formula(argument: str) -> None:
    plan = megatron(argument)
    assert plan.layout is not None
    assert (plan.layout.optimizer_place, plan.layout.parameters_place) == (Place.CPU, Place.DEVICE)
    assert plan.unmodelled == ()


def test_torchtitans_offload_moves_all_state_to_the_cpu() -> None:
    plan = titan({}, training={"enable_cpu_offload": True})
    assert plan.layout is not None
    assert (plan.layout.zero, plan.layout.parameters_place, plan.unmodelled) == (3, Place.CPU, ())
    piped = titan({"pipeline_parallel_degree": 2}, training={"enable_cpu_offload": True, "local_batch_size": 2})
    assert piped.unmodelled == ("weights and optimizer states that are offloaded with a pipeline",)


def test_megatrons_script_gives_positions_biases_and_the_order_of_sums() -> None:
    plain, other = megatron("--max-position-embeddings 4096"), megatron("--deterministic-mode --transformer-impl local")
    assert plain.shape is not None
    assert other.shape is not None
    assert (plain.shape.positions, plain.shape.biases, plain.ordered) == (4096, False, False)
    assert (other.shape.biases, other.ordered) == (True, True)
    for argument in ("--position-embedding-type rope", "--use-rotary-position-embeddings"):
        shape = megatron(f"--max-position-embeddings 4096 {argument}").shape
        assert shape is not None
        assert shape.positions == 0


def test_a_training_in_fp32_is_not_judged_as_one_in_bf16() -> None:
    plan = read_megatron("train.sh", SHAPES.removeprefix("--bf16 "), shape=None, gpus=8)
    assert "fp32" in open_rules(plan)["does-not-fit"]


@pytest.mark.parametrize(
    ("argument", "zero"),
    [
        ("--use-torch-fsdp2", 3),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params", 3),
        ("--use-megatron-fsdp", 0),
        ("--use-distributed-optimizer", 1),
    ],
)
def test_megatrons_fsdp_is_a_stage_of_zero(argument: str, zero: int) -> None:
    layout = megatron(argument).layout
    assert layout is not None
    assert layout.zero == zero


def deepspeed(table: Mapping[str, object], gpus: int = 8) -> TrainingPlan:
    given = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, **table}
    return read_deepspeed("ds.json", given, shape=PRESETS["llama3-8b"], gpus=gpus)


@pytest.mark.parametrize(
    ("table", "what"),
    [
        ({"bf16": {"enabled": False}}, "fp32"),
        ({"optimizer": {"type": "OneBitAdam"}}, "the optimizer OneBitAdam"),
        ({"pipeline": {"stages": 4}}, "a pipeline"),
    ],
)
def test_what_deepspeed_moves_or_shrinks_is_not_judged_by_formula(table: dict[str, object], what: str) -> None:
    recompute = {"does-not-fit", "checkpoint-cadence"}
    why = open_rules(deepspeed(table))
    assert what in why["does-not-fit"]
    assert recompute <= why.keys()
    plain = {"zero_optimization": {"stage": 3, "offload_param": {"device": "none"}, "zero_hpz_partition_size": 1}}
    assert "does-not-fit" not in open_rules(deepspeed(plain))


@pytest.mark.parametrize(
    ("zero", "field", "value"),
    [
        ({"stage": 3, "offload_optimizer": {"device": "cpu"}}, "optimizer_place", Place.CPU),
        ({"stage": 2, "cpu_offload": True}, "optimizer_place", Place.CPU),
        ({"stage": 3, "offload_param": {"device": "nvme"}}, "parameters_place", Place.NVME),
        ({"stage": 2, "offload_param": {"device": "nvme"}}, "parameters_place", Place.DEVICE),
        ({"stage": 3, "zero_hpz_partition_size": 8}, "node_ranks", 8),
        ({"stage": 3, "zero_quantized_weights": True}, "quantize_weights", True),
        ({"stage": 3, "zero_quantized_gradients": True}, "quantize_gradients", True),
    ],
)
def test_deepspeeds_offload_and_zeropp_are_judged_by_formula(
    zero: dict[str, object], field: str, value: object
) -> None:
    plan = deepspeed({"zero_optimization": zero})
    assert getattr(plan.layout, field) == value
    assert "does-not-fit" not in open_rules(plan)
    with pytest.raises(UsageError, match=r"none, cpu or nvme"):
        deepspeed({"zero_optimization": {"stage": 3, "offload_param": {"device": "tape"}}})


def test_axes_that_deepspeed_states_are_read() -> None:
    table = {
        "tensor_parallel": {"autotp_size": 2},
        "sequence_parallel_size": 2,
        "gradient_accumulation_steps": 2,
        "zero_optimization": {"stage": 3, "mics_shard_size": 2},
    }
    layout = deepspeed(table, gpus=16).layout
    assert layout is not None
    assert (layout.dp, layout.tp, layout.cp, layout.cp_method, layout.replicas) == (4, 2, 2, "ulysses", 2)


def test_a_batch_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(UsageError, match=r"train_batch_size is 32; give data ranks x microbatch x accumulation = 16"):
        deepspeed({"train_batch_size": 32, "gradient_accumulation_steps": 2})


def titan(parallelism: Mapping[str, object], **tables: Mapping[str, object]) -> TrainingPlan:
    given = {"training": {"local_batch_size": 2, "seq_len": 8192}, **tables, "parallelism": parallelism}
    return read_torchtitan("t.toml", given, shape=None, gpus=64)


def test_megatrons_context_parallelism_by_heads_is_that_of_ulysses() -> None:
    layout = megatron("--context-parallel-size 2 --cp-comm-type a2a").layout
    assert layout is not None
    assert (layout.cp, layout.cp_method) == (2, ULYSSES)


def test_megatron_deepspeed_gives_zeros_stage_and_ulysses() -> None:
    """microsoft/Megatron-DeepSpeed's arguments."""
    layout = megatron("--deepspeed --zero-stage 3 --ds-sequence-parallel-size 2 --tensor-model-parallel-size 2").layout
    assert layout is not None
    assert (layout.zero, layout.cp, layout.cp_method, layout.dp) == (3, 2, ULYSSES, 2)
    assert megatron("--deepspeed-activation-checkpointing").recompute is Recompute.FULL


def test_megatrons_latent_attention_is_read_with_its_defaults() -> None:
    shape = megatron("--multi-latent-attention --q-lora-rank 1536 --v-head-dim 96").shape
    assert shape is not None
    assert shape.latent == Latent(kv_rank=512, rope=64, value_dim=96, q_rank=1536)
    assert shape.query_width == shape.heads * (128 + 64)


TODAY = """
def llama3_405b() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("405B", attn_backend="flex"),
        model_converters=ModelConvertersContainer.Config(converters=[Float8LinearConverter.Config(emulate=True)]),
        optimizer=OptimizersContainer.Config(lr=8e-5),
        training=TrainingConfig(local_batch_size=2, seq_len=8192),
        parallelism=ParallelismConfig(tensor_parallel_degree=8, enable_sequence_parallel=False),
        compile=CompileConfig(enable=True),
    )
"""


def today(*changes: tuple[str, str]) -> TrainingPlan:
    text = TODAY
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    tables = python_tables("registry.py", text, name=None)
    assert tables is not None
    return read_torchtitan("registry.py", tables, shape=None, gpus=64)


CONVERTED = "converters=[Float8LinearConverter.Config(emulate=True)]"


def test_the_registry_of_torchtitan_names_the_model() -> None:
    plan = today((CONVERTED, ""))
    assert plan.shape == replace(PRESETS["llama3-405b"], sequence=8192)
    assert plan.unmodelled == ()
    assert plan.layout is not None
    assert not plan.layout.sequence_parallel
    assert today(('"405B"', '"debugmodel"')).shape is None


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("8e-5", "8e-5", "converters of the model: Float8LinearConverter"),
        (CONVERTED, "converters=[LoRAConverter.Config(rank=8)]", "converters of the model: LoRAConverter"),
        (CONVERTED, "converters=made()", "converters of the model: made"),
        ('attn_backend="flex"', "quantization=[MXFP8.Config()]", "converters of the model: MXFP8"),
        ("OptimizersContainer", "OptimizersInBackwardContainer", "the optimizer OptimizersInBackwardContainer.Config"),
        ("compile=CompileConfig", "lora=LoRAConfig", "the table lora"),
        ("tensor_parallel_degree=8", "sharding_plan_degree=8", "parallelism.sharding_plan_degree"),
    ],
)
def test_what_todays_torchtitan_changes_is_not_judged_by_formula(old: str, new: str, what: str) -> None:
    assert what in today((old, new)).unmodelled


def test_converters_that_are_set_later_are_refused() -> None:
    text = TODAY.replace("return Trainer", "c = Trainer") + "    c.model_converters = more()\n    return c\n"
    with pytest.raises(UsageError, match="llama3_405b computes model_converters"):
        python_tables("r.py", text, name=None)


def test_tables_of_torchtitan_that_are_not_known_are_named() -> None:
    assert titan({}, lora={"rank": 8}, metrics={}).unmodelled == ("the table lora",)
    assert titan({"new_degree": 2}).unmodelled == ("parallelism.new_degree",)
    assert titan({}, fault_tolerance={"enable": True}).unmodelled == ("replicas that may fail (fault_tolerance)",)


@pytest.mark.parametrize(
    ("table", "what"),
    [
        ({"moe": {"enabled": True, "ep_size": 4}}, "the setting moe"),
        ({"amp": {"enabled": True}}, "the setting amp"),
        ({"zero_optimization": {"stage": 2, "zenflow": {"topk_ratio": 0.1}}}, "the setting zero_optimization.zenflow"),
    ],
)
def test_settings_of_deepspeed_that_are_not_known_are_named(table: dict[str, object], what: str) -> None:
    assert what in deepspeed(table).unmodelled


def test_settings_of_deepspeed_that_are_off_or_harmless_are_not_named() -> None:
    zero = {"stage": 3, "stage3_max_live_parameters": 10**9, "overlap_comm": True, "zenflow": None}
    harmless = {"amp": {"enabled": False}, "wandb": {"enabled": True}, "steps_per_print": 10, "bf16": {"enabled": True}}
    assert deepspeed({"zero_optimization": zero, **harmless}).unmodelled == ()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("compute_environment: LOCAL_MACHINE\nnum_processes: 8\n", "Accelerate"),
        ("base_model: a/b\nmicro_batch_size: 2\n", "Axolotl"),
        ("stage: sft\nfinetuning_type: lora\n", "LLaMA-Factory"),
        ("max_seq_len: 2048\nmodel:\n  name: mpt_causal_lm\n", "llm-foundry"),
        ("per_device_train_batch_size: 1\n", "transformers' Trainer"),
        ("trainer:\n  devices: 8\n", "NeMo"),
    ],
)
def test_yaml_of_other_tools_is_known_by_its_keys(text: str, what: str) -> None:
    assert what in (other_yaml(text) or "")
    assert other_yaml("num-layers: 4\n") is None


def test_a_model_and_an_older_number_of_microbatches_are_read() -> None:
    python = PYTHON.replace('model_spec=model_registry("8B")', 'model=Model(name="llama3", flavor="8B")')
    tables = python_tables("registry.py", python, name="llama3_8b")
    assert tables is not None
    plan = read_torchtitan("registry.py", tables, shape=None, gpus=8)
    assert plan.shape == replace(PRESETS["llama3-8b"], sequence=8192)
    given = {
        "job": {},
        "training": {"batch_size": 8},
        "experimental": {"pipeline_parallel_degree": 2, "pipeline_parallel_microbatches": 4},
    }
    layout = read_torchtitan("t.toml", given, shape=None, gpus=8).layout
    assert layout is not None
    assert (layout.microbatches, layout.micro_batch) == (4, 2)
    split = {"expert_parallel_degree": 4, "expert_tensor_parallel_degree": 2}
    assert "a tensor-parallel size of experts" in titan(split).unmodelled


@pytest.mark.parametrize(
    "tables",
    [
        {"training": {"tensor_parallel_degree": 8}, "experimental": {"pipeline_parallel_degree": 2}},
        {"training": {"data_parallel_degree": 4, "tensor_parallel_degree": 8, "pipeline_parallel_degree": 2}},
    ],
)
def test_torchtitans_older_places_of_degrees_are_read(tables: dict[str, dict[str, object]]) -> None:
    given = {"job": {}, **tables, "training": {"batch_size": 2, "seq_len": 8192, **tables["training"]}}
    plan = read_torchtitan("t.toml", given, shape=None, gpus=64)
    assert plan.layout is not None
    assert (plan.tp, plan.pp, plan.layout.dp) == (8, 2, 4)


def test_the_flavor_of_torchtitan_is_the_model() -> None:
    model = {"name": "llama3", "flavor": "70B"}
    assert titan({}, model=model).shape == replace(PRESETS["llama3-70b"], sequence=8192)
    assert titan({}, model={"name": "llama4", "flavor": "17bx16e"}).shape is None


@pytest.mark.parametrize(
    ("parallelism", "zero", "replicas"),
    [
        ({"data_parallel_replicate_degree": 4}, 3, 4),
        ({"data_parallel_replicate_degree": 8, "data_parallel_shard_degree": 8}, 3, 8),
        ({"data_parallel_replicate_degree": 64, "data_parallel_shard_degree": 1}, 0, 1),
        ({"tensor_parallel_degree": 8}, 3, 1),
    ],
)
def test_replicas_of_shards_are_read(parallelism: dict[str, object], zero: int, replicas: int) -> None:
    layout = titan(parallelism).layout
    assert layout is not None
    assert (layout.zero, layout.replicas) == (zero, replicas)


def test_degrees_that_do_not_make_the_ranks_are_refused() -> None:
    with pytest.raises(UsageError, match=r"shard_degree is 4; give -1, or degrees whose product is 64"):
        titan({"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 4})


def test_each_pass_of_a_pipeline_has_the_microbatches_of_a_local_batch() -> None:
    """torchtitan accumulates gradients over whole passes of the pipeline: 2 microbatches of 4 ranks, 8 times."""
    training: dict[str, object] = {"local_batch_size": 2, "global_batch_size": 128}
    plan = titan({"tensor_parallel_degree": 2, "pipeline_parallel_degree": 4}, training=training)
    assert plan.layout is not None
    assert plan.layout.microbatches == 2
    assert plan.unmodelled == ("several passes of the pipeline in a step (global_batch_size)",)


def test_a_schedule_without_a_formula_for_its_microbatches_leaves_the_layout_open() -> None:
    plan = titan({"pipeline_parallel_degree": 4, "pipeline_parallel_schedule": "Interleaved1F1B"})
    assert plan.layout is None
    assert "interleaved needs a multiple of 4 microbatches" in plan.open_because


@pytest.mark.parametrize(
    ("tables", "what"),
    [
        ({"training": {"dtype": "bfloat16"}}, "bfloat16 without wide weights"),
        ({"model": {"converters": ["float8"]}}, "float8"),
        ({"optimizer": {"name": "Muon"}}, "the optimizer Muon"),
        ({"float8": {"enable_float8_linear": True}}, "products in float8"),
    ],
)
def test_what_torchtitan_moves_or_shrinks_is_not_judged_by_formula(
    tables: dict[str, dict[str, object]], what: str
) -> None:
    assert what in " ".join(titan({}, **tables).unmodelled)
    assert titan({}, model={"converters": []}).unmodelled == ()
