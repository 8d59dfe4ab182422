"""Prediction of a plan, and of the same plan with a change."""

from dataclasses import replace

from traincope.errors import UsageError
from traincope.plan.check.problem import Site
from traincope.plan.check.training_plan import TrainingPlan
from traincope.plan.layout.layout import Layout
from traincope.plan.layout.machine import Machine
from traincope.plan.layout.prediction import Prediction, predict
from traincope.plan.model.flops import Recompute
from traincope.plan.model.precision import Precision
from traincope.plan.search.search import FLASH


def predicted(
    plan: TrainingPlan, *, machine: Machine, layout: Layout | None = None, recompute: Recompute | None = None
) -> Prediction | None:
    """Prediction of a plan, with flash attention and AdamW; `layout` and `recompute` replace the plan's.

    None if the plan leaves its model or layout open, has a setting without a formula, or an impossible layout.
    """
    layout = layout or plan.layout
    if plan.shape is None or layout is None or plan.unmodelled:
        return None
    kept = replace(FLASH, early_stop=plan.early_stop, ordered=plan.ordered)
    policy = kept.with_recompute(recompute or plan.recompute or Recompute.NONE)
    try:
        return predict(
            plan.shape, layout=layout, precision=Precision(), policy=policy, machine=machine, causal_half=True
        )
    except UsageError:
        return None


def saved_ratio(
    plan: TrainingPlan,
    site: Site,
    *,
    machine: Machine | None = None,
    layout: Layout | None = None,
    recompute: Recompute | None = None,
    scale: float = 1.0,
) -> float | None:
    """Share of the time that a change saves; `scale`: work of the old step over that of the new one."""
    changed = predicted(plan, machine=machine or site.cluster.machine(), layout=layout, recompute=recompute)
    if changed is None or site.prediction is None:
        return None
    return 1 - changed.expected_seconds * scale / site.prediction.expected_seconds
