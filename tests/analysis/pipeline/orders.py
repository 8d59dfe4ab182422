"""Pipeline orders, written as in the papers."""

from traincope.plan.pipeline.actions import Action

Orders = dict[int, tuple[Action, ...]]
"""Order by rank."""


def gpipe(stages: int, microbatches: int) -> Orders:
    return {s: tuple(Action(kind, s, m) for kind in "FB" for m in range(microbatches)) for s in range(stages)}


def one_forward_one_backward(stages: int, microbatches: int) -> Orders:
    return {s: tuple(_1f1b(s, warm_up=min(stages - s, microbatches), microbatches=microbatches)) for s in range(stages)}


def _1f1b(stage: int, *, warm_up: int, microbatches: int) -> list[Action]:
    """Build Megatron's order: after the warm-up one forward follows each backward."""
    forwards = [Action("F", stage, m) for m in range(microbatches)]
    backwards = [Action("B", stage, m) for m in range(microbatches)]
    steady = [action for pair in zip(backwards, forwards[warm_up:], strict=False) for action in pair]
    return forwards[:warm_up] + steady + backwards[microbatches - warm_up :]
