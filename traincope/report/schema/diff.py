"""Types of the object that `diff --format json` prints."""

from typing import Annotated, Any, TypedDict

from traincope.analysis.diff.settings import Difference
from traincope.report.schema.job import Finding


class ComparedRun(TypedDict):
    id: str
    ranks: int
    steps: int
    """Number of compared steps."""
    sampled_steps: int | None
    """Number of those that terms stand on; null: all of both runs."""
    clock: str
    """Clock of the terms: host, marks on the GPUs' streams, kernel traces. If it differs, no term is compared."""


class TermChange(TypedDict):
    term: str
    before: float
    after: float
    change: float
    change_ratio: float | None
    """Change as a share of the first run's step."""
    steps: list[int]
    """Number of steps that it stands on in the first and in the second run."""
    p: float | None
    """Probability of so large a change by chance; of a term corrected for all terms; null: not tested."""
    steps_needed: int | None
    """About as many steps of each run would be tested; null: tested."""
    evident: bool
    path_change: float | None
    """Change of the term's time on the critical path, which shows the full cost of a rank that others wait for."""
    rank: int | None
    """Rank with the largest change."""
    rank_change: float | None


class Diff(TypedDict):
    judgement: str
    """slower, faster, small, no evidence, not tested, or other work."""
    basis: str
    """Quantity of all numbers: step (ns), rank-time per token (ns), or share of a step."""
    reason: str | None
    """Reason for a basis other than the step."""
    before: ComparedRun
    after: ComparedRun
    step: TermChange
    interval: list[float] | None
    """95 % interval of the step's change, [lower, upper]; null: not tested, or only shares are compared."""
    terms: list[TermChange]
    """Changes in ledger order; means over the ranks. Outlier steps are limited for each term separately, so the
    terms may not sum to the step."""
    movers: list[str]
    """Terms with evidence of a change, the largest first."""
    unseen: list[str]
    level: float
    """Largest p at which a change is evident."""
    threshold_ratio: float
    """Smallest share of a step that is called slower or faster."""
    settings: Annotated[Any, list[Difference]]
    new_findings: list[Finding]
    """Findings of the second run that the first run does not have on the same ranks."""
