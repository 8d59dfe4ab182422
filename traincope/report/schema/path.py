"""What a step's end waits for, and what a change would make of it."""

from typing import TypedDict


class Segment(TypedDict):
    rank: int
    term: str
    """A ledger term."""
    start_ns: int
    """From the begin of the step."""
    duration_ns: int


class RankPath(TypedDict):
    rank: int
    ns: int
    terms: dict[str, int]
    """Ledger term -> ns of the path on this rank, the largest first."""


class CriticalPath(TypedDict):
    steps: int
    """Counted steps that all ranks completed; of more than 1,000 evenly spread ones."""
    wall_ns: int
    """Of these, each from when the last rank began it to when the last rank ended it, without evaluation."""
    terms: dict[str, int]
    """Ledger term -> ns, the largest first; their sum is wall_ns. Waiting is in here as what was waited for."""
    ranks: list[RankPath]
    """Those that the path is on, the longest first; their sum is wall_ns."""
    untold_ns: int
    """Part of the transfers of which nobody knows whether they were waiting for a rank."""
    clock_error_ns: int | None
    """How far the ranks' times may be from each other's, where the path changes rank; null: nothing says so."""
    reason: str | None
    """Why there is no path: then steps is 0."""
    step: int | None
    """The step of median length."""
    segments: list[Segment] | None
    """Of that step, in order and without gaps; null where there are more than 2,000."""


class Prediction(TypedDict):
    """What `report --what-if` prints; times are means of a step, ns."""

    changes: list[str]
    steps: int
    """That were played: the last ones that follow each other."""
    step_ns: float | None
    predicted_step_ns: float | None
    predicted_least_ns: float | None
    """If what nobody saw the end of had taken no time on the wire."""
    change_ratio: float | None
    """Of the step time; negative: it would be shorter."""
    median_step_ns: float | None
    predicted_median_step_ns: float | None
    replay_error_ratio: float | None
    """How much longer the steps take when they are played as they were: the prediction is no better than this."""
    reason: str | None
    """Why the numbers are null."""
