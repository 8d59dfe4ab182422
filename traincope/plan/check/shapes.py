"""Rules of sizes that the matrix units multiply."""

from collections.abc import Iterator

from traincope.plan.check.problem import Problem, Site
from traincope.plan.check.training_plan import TrainingPlan

WHOLE_TILE = 64
"""Numbers of 16 bit in 128 bytes: sizes that are a multiple of it use whole tiles."""


def even_vocabulary(plan: TrainingPlan, _: Site) -> Iterator[Problem]:
    """The vocabulary of a rank of tp is a multiple of 64."""
    tp = plan.tp or 1
    if plan.vocabulary is None or plan.vocabulary % (WHOLE_TILE * tp) == 0:
        return
    padded = -(-plan.vocabulary // (WHOLE_TILE * tp)) * WHOLE_TILE * tp
    over = f" x tp = {tp}" if tp > 1 else ""
    yield Problem(
        message=f"the vocabulary of {plan.vocabulary:,} is not a multiple of {WHOLE_TILE}{over}",
        fix=f"Pad the vocabulary to {padded:,}.",
    )


def even_heads(plan: TrainingPlan, _: Site) -> Iterator[Problem]:
    """Heads are a multiple of 64 wide."""
    if plan.head_dim is None or plan.head_dim % WHOLE_TILE == 0:
        return
    width = -(-plan.head_dim // WHOLE_TILE) * WHOLE_TILE
    yield Problem(
        message=f"heads are {plan.head_dim} wide, which is not a multiple of {WHOLE_TILE}",
        fix=f"Use fewer heads, {width} wide.",
    )
