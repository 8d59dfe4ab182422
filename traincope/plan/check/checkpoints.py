"""Rules of checkpoints: how often, and whether the training waits."""

from collections.abc import Iterator

from traincope.plan.cadence import Failures, daly_seconds, job_mtbf, useful_ratio
from traincope.plan.check.problem import Problem, Site
from traincope.plan.check.training_plan import TrainingPlan

MIN_LOSS = 0.01
"""Share of all time below which another interval is not worth a problem."""


def saved_at_all(plan: TrainingPlan, _: Site) -> Iterator[Problem]:
    """The training saves checkpoints."""
    if plan.saves is False:
        yield Problem(message="the training saves no checkpoint: a failure loses all of it", fix="Save checkpoints.")


def saved_in_background(plan: TrainingPlan, site: Site) -> Iterator[Problem]:
    """The training does not wait for a checkpoint's disk."""
    if not plan.blocking_saves:
        return
    lost = None
    if plan.checkpoint_steps is not None and site.prediction is not None:
        interval = plan.checkpoint_steps * site.prediction.expected_seconds
        lost = site.job.save_seconds / (interval + site.job.save_seconds)
    yield Problem(
        message=f"the training waits while a checkpoint is written, about {site.job.save_seconds:g} s each time",
        fix="Write checkpoints in the background, from a copy in the CPU's memory.",
        lost_ratio=lost,
    )


def saved_in_time(plan: TrainingPlan, site: Site) -> Iterator[Problem]:
    """The interval between checkpoints is near Daly's.

    Daly's best interval balances lost work with the stop of each save. A save in the background stops nothing, so then
    only a longer interval is a problem, and its cost is unknown.
    """
    if plan.checkpoint_steps is None or site.prediction is None:
        return
    failures = Failures(
        mtbf_seconds=job_mtbf(part_mtbf_seconds=site.job.rank_mtbf_seconds, parts=site.prediction.ranks),
        save_seconds=site.job.save_seconds,
        restart_seconds=site.job.restart_seconds,
    )
    step = site.prediction.expected_seconds
    best = daly_seconds(failures)
    most = useful_ratio(failures, best)
    lost = 1.0 if not most else 1 - useful_ratio(failures, plan.checkpoint_steps * step) / most
    background = plan.blocking_saves is False
    if lost < MIN_LOSS or (background and plan.checkpoint_steps * step <= best):
        return
    yield Problem(
        message=(
            f"a checkpoint every {plan.checkpoint_steps:,} steps is every {plan.checkpoint_steps * step:,.0f} s; with "
            f"a failure every {failures.mtbf_seconds / 3600:.3g} h the best interval is {best:,.0f} s"
        ),
        fix=f"Save every {max(1, round(best / step)):,} steps.",
        lost_ratio=None if background else lost,
    )
