"""Rules of memory: what is computed again, and the optimizer's state."""

from collections.abc import Iterator

from traincope.plan.check.predicting import predicted, saved_ratio
from traincope.plan.check.problem import Problem, Site
from traincope.plan.check.training_plan import TrainingPlan
from traincope.plan.model.flops import Recompute
from traincope.units import size


def recompute_only_for_memory(plan: TrainingPlan, site: Site) -> Iterator[Problem]:
    """Activations are computed again only where they don't fit."""
    if plan.recompute in (None, Recompute.NONE):
        return
    machine = site.cluster.machine()
    without = predicted(plan, machine=machine, recompute=Recompute.NONE)
    if without is None or not without.fits:
        return
    yield Problem(
        message=(
            f"recompute = {plan.recompute} repeats work, but all activations fit: {size(without.largest_bytes)} of "
            f"{size(machine.memory_bytes)}"
        ),
        fix="Switch recomputation off.",
        lost_ratio=saved_ratio(plan, site, recompute=Recompute.NONE),
    )


def fits(plan: TrainingPlan, site: Site) -> Iterator[Problem]:
    """The fullest rank fits into its GPU. Where the plan does not say what is recomputed, it may be everything."""
    least = site.prediction
    if plan.recompute is None and least is not None:
        least = predicted(plan, machine=site.cluster.machine(), recompute=Recompute.FULL)
    if least is None or least.fits:
        return
    at_least = " even if it recomputes all activations" if plan.recompute is None else ""
    yield Problem(
        message=(
            f"a rank needs {size(least.largest_bytes)} by formula{at_least}, and a GPU has "
            f"{size(site.cluster.memory_bytes)} to fill"
        ),
        fix="Shard more (ZeRO stage 3, tp, pp), recompute activations, or shorten sequences; see `plan search`.",
    )


def wide_optimizer_state(plan: TrainingPlan, _: Site) -> Iterator[Problem]:
    """The optimizer's mean squared gradients are wider than fp16, or scaled."""
    if plan.optimizer_states != "fp16":
        return
    yield Problem(
        message="the optimizer's mean squared gradients are fp16: unless they are scaled, those below 3e-8 become 0",
        fix="Keep them in fp32 or bf16, or check that the optimizer scales them.",
    )
