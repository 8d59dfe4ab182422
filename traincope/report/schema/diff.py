"""The one object that `diff --format json` prints."""

from typing import TypedDict

from traincope.report.schema.job import Finding


class ComparedRun(TypedDict):
    id: str
    ranks: int
    steps: int
    """Those that were compared."""
    blocks: int
    """Of steps that are compared as one; of less than 5 nothing is said."""


class Moved(TypedDict):
    term: str
    before: float
    after: float
    change: float
    change_ratio: float | None
    """Of the first run's step."""
    p: float | None
    """Of so large a change by chance, all terms considered; null: too few steps."""
    evident: bool
    path_change: float | None
    """Of its time on the critical path, where a rank that others wait for shows whole."""
    rank: int | None
    """In which it changed most."""
    rank_change: float | None


class Difference(TypedDict):
    family: str
    """layout, settings, versions, environment or machine."""
    name: str
    before: str | None
    after: str | None
    """null: that run has none."""


class Diff(TypedDict):
    judgement: str
    """slower, faster, small, no evidence, too few steps, or other work."""
    basis: str
    """What numbers are of: step (ns), rank-time per token (ns), or share of a step."""
    reason: str | None
    """Why it is not the step."""
    before: ComparedRun
    after: ComparedRun
    step: Moved
    interval: list[float] | None
    """95 % of the step's change, [least, most]."""
    terms: list[Moved]
    """In ledger order; means over the ranks. Of each its own odd steps are pulled in, so that they may not sum to the
    step's."""
    movers: list[str]
    """Those for whose change there is evidence, the largest first."""
    unseen: list[str]
    level: float
    """A change is evident with p up to this."""
    least_ratio: float
    """Share of a step from which a change is called slower or faster."""
    block_steps: int
    settings: list[Difference]
    new_findings: list[Finding]
    """Of the second run's verdict, what the first one's does not say of the same ranks."""
