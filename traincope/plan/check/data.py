"""Rules of the input."""

from collections.abc import Iterator

from traincope.plan.check.problem import Problem, Site
from traincope.plan.check.training_plan import TrainingPlan


def loader_with_workers(plan: TrainingPlan, _: Site) -> Iterator[Problem]:
    """Other processes prepare the batches."""
    if plan.workers == 0:
        yield Problem(
            message="the training process prepares its own batches, so the GPU waits for each of them",
            fix="Use 2 or more workers.",
        )
