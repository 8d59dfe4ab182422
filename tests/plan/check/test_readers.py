"""Plans as the readers take them, by the rules of each framework."""

import pytest

from traincope.errors import UsageError
from traincope.plan.check.readers.deepspeed import read_deepspeed
from traincope.plan.check.readers.megatron import read_megatron
from traincope.plan.check.training_plan import TrainingPlan
from traincope.plan.layout.layout import Layout

SHAPES = "--num-layers 2 --hidden-size 4096 --num-attention-heads 32 --seq-length 128 --vocab-size 50257"


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
    assert plan.layout == Layout(dp=8, micro_batch=micro_batch, microbatches=microbatches)


def test_a_batch_that_deepspeed_cannot_divide_is_refused() -> None:
    with pytest.raises(UsageError, match=r"train_batch_size is 60; give a multiple of GPUs x microbatch x acc.* = 8"):
        read_deepspeed("ds.json", {"train_batch_size": 60}, shape=None, gpus=8)


def test_deepspeeds_table_of_checkpointing_only_configures() -> None:
    plan = read_deepspeed("ds.json", {"activation_checkpointing": {"partition_activations": True}}, shape=None, gpus=8)
    assert plan.recompute is None
