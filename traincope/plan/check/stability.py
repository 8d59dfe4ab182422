"""Rules that keep a training on its way: clipping, balanced experts, watched ranks."""

from collections.abc import Iterator

from traincope.plan.check.problem import Problem, Site
from traincope.plan.check.training_plan import TrainingPlan


def clipped_gradients(plan: TrainingPlan, _: Site) -> Iterator[Problem]:
    """Gradients are clipped by their norm."""
    if plan.clips is False:
        yield Problem(
            message="gradients are not clipped, so one bad batch can move all weights",
            fix="Clip the gradients' norm at 1.0.",
        )


def balanced_experts(plan: TrainingPlan, _: Site) -> Iterator[Problem]:
    """A capacity comes with a loss that balances experts; otherwise popular experts drop tokens."""
    if plan.experts and plan.capacity_factor is not None and plan.balance == 0:
        yield Problem(
            message=f"capacity factor {plan.capacity_factor:g} drops tokens of popular experts, which no loss balances",
            fix="Add the auxiliary loss with a weight of 0.01, or leave the capacity out.",
        )


def watched_ranks(plan: TrainingPlan, site: Site) -> Iterator[Problem]:
    """Something names a slow rank."""
    if plan.watches_stragglers is False and site.cluster.gpus > 1:
        yield Problem(
            message=f"nothing watches for a slow rank, and one of {site.cluster.gpus:,} slows all others",
            fix="Start the training with `traincope run -- COMMAND`.",
        )
