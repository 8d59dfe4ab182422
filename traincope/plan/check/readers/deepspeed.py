"""DeepSpeed's JSON: deepspeed.ai/docs/config-json."""

import re
from collections.abc import Mapping

from traincope.plan.check.readers.values import AUTO, Values
from traincope.plan.check.training_plan import TrainingPlan
from traincope.plan.layout.layout import Layout
from traincope.plan.model.transformer import Transformer

BATCH, CLIPPING = (
    ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size"),
    "gradient_clipping",
)
COMMENT = re.compile(r'("(?:[^"\\]|\\.)*")|#[^\n]*|//[^\n]*|/\*.*?\*/|,(?=\s*[}\]])', re.DOTALL)
"""A string, which stays; or a comment or a last comma, which DeepSpeed's hjson allows."""
NOT_A_BREAK = re.compile(r"[^\n]")
KEYS = {"train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization", "gradient_accumulation_steps"}


def plain_json(text: str) -> str:
    """Blank what hjson allows and JSON does not: comments, and commas before an end. Each place stays where it was."""
    without_comments = COMMENT.sub(_blanked, text)
    return COMMENT.sub(_blanked, without_comments)


def _blanked(match: re.Match[str]) -> str:
    return match[1] or NOT_A_BREAK.sub(" ", match[0])


def is_deepspeed(table: Mapping[str, object]) -> bool:
    return not KEYS.isdisjoint(table)


def read_deepspeed(source: str, table: Mapping[str, object], *, shape: Transformer | None, gpus: int) -> TrainingPlan:
    """The plan on `gpus` GPUs that share data only. Raises UsageError for values of a wrong kind.

    The table `activation_checkpointing` configures recomputation; the training's code decides whether it is used.
    `fp16_master_weights_and_grads` keeps the optimizer's state in fp32 (deepspeed/runtime/zero/stage_1_and_2.py).
    """
    top, zero = Values(source, {"": table}, ""), Values(source, table, "zero_optimization")
    left_open = [key for key in BATCH if top.left_open(key)]
    layout = None
    if not left_open:
        micro, accumulation = _microbatches(top, gpus)
        layout = Layout(dp=gpus, zero=zero.whole("stage", 0), microbatches=accumulation, micro_batch=micro)
    clips = None if top.left_open(CLIPPING) else top.number(CLIPPING, 0.0) > 0
    return TrainingPlan(
        framework="DeepSpeed",
        open_because=f"{', '.join(left_open)}: {AUTO}; write the numbers of the training" if left_open else "",
        shape=shape,
        layout=layout,
        tp=1,
        pp=1,
        vocabulary=None if shape is None else shape.vocabulary,
        head_dim=None if shape is None else shape.query_width // shape.heads,
        clips=clips,
        optimizer_states="fp32",
        watches_stragglers=False,
    )


def _microbatches(top: Values, gpus: int) -> tuple[int, int]:
    """Sequences of a microbatch, and microbatches of a step. One that is missing follows from `train_batch_size`."""
    keys = BATCH[:2]
    micro, accumulation = (top.whole(key, 1) for key in keys)
    if not top.given("train_batch_size") or all(map(top.given, keys)):
        return micro, accumulation
    batch, divisor = top.whole("train_batch_size", 1), gpus * micro * accumulation
    if divisor < 1 or batch < 1 or batch % divisor:
        raise top.wrong("train_batch_size", batch, f"a multiple of GPUs x microbatch x accumulation = {divisor}")
    return (micro, batch // divisor) if top.given(keys[0]) else (batch // divisor, accumulation)
