"""A broken rule, and the place where the training is to run."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from traincope.plan.check.training_plan import TrainingPlan
from traincope.plan.layout.prediction import Prediction
from traincope.plan.search.clusters import Cluster
from traincope.plan.search.job import Job


class Severity(StrEnum):
    """Worst first."""

    ERROR = "error"
    """The training is likely to fail or to learn badly."""
    WARNING = "warning"
    """It wastes time or is at risk."""
    INFO = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where the training is to run, and what the formulas predict there."""

    cluster: Cluster
    job: Job
    prediction: Prediction | None
    """None if the plan leaves its model or layout open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One place where a plan breaks a rule."""

    message: str
    fix: str
    """The change, in one line."""
    lost_ratio: float | None = None
    """Share of the training's time that the change saves, by formula. None: no formula."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule with the reason why it exists."""

    name: str
    severity: Severity
    source: str
    find: Callable[[TrainingPlan, Site], Iterator[Problem]]
    needs: tuple[str, ...] = ()
    """Fields of a plan without which it cannot be judged."""
