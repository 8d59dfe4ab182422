"""Types of the critical path and of predictions from it."""

from typing import Annotated, TypedDict

from traincope.report.schema.convert import result


class Segment(TypedDict):
    rank: int
    term: str
    """A ledger term."""
    start_ns: int
    """Time since the start of the step."""
    duration_ns: Annotated[int, result.length_ns]


class RankPath(TypedDict):
    rank: int
    ns: int
    terms: dict[str, int]
    """Ledger term -> ns of the path on this rank, the largest first."""


class CriticalPath(TypedDict):
    steps: int
    """Number of counted steps that all ranks completed; above 1,000 a sample of evenly spaced steps."""
    wall_ns: int
    """Sum over these steps of the time from the last rank's start to the last rank's end, without evaluation."""
    terms: dict[str, int]
    """Ledger term -> ns, the largest first; their sum is wall_ns. A wait appears as the work that it waited for."""
    ranks: list[RankPath]
    """Ranks on the path, the longest first; their sum is wall_ns."""
    untold_ns: int
    """Part of the transfers that may be waits for a rank; the records cannot separate them."""
    clock_error_ns: int | None
    """Largest clock error between ranks at which the path changes rank; null: unknown."""
    reason: str | None
    """Reason for a missing path; then steps is 0."""
    step: int | None
    """The step of median length."""
    segments: list[Segment] | None
    """Segments of that step, in order and without gaps; null if there are more than 2,000."""


class Prediction(TypedDict):
    """The object that `report --what-if` prints. Times are means per step, in ns."""

    changes: list[str]
    steps: int
    """Number of replayed steps: the last consecutive ones."""
    step_ns: float | None
    predicted_step_ns: float | None
    predicted_least_ns: float | None
    """Lower bound: the prediction if transfers of unknown duration took no time on the wire."""
    change_ratio: float | None
    """Change of the step time as a ratio; negative: shorter."""
    median_step_ns: float | None
    predicted_median_step_ns: float | None
    replay_error_ratio: float | None
    """Relative error of a replay without changes. A prediction is at most as accurate."""
    reason: str | None
    """Reason for null numbers."""


class SettingsPrediction(TypedDict):
    """The object that `report --what-if` prints for settings such as `pp=4`. Times are of the median step, in ns."""

    settings: dict[str, int | str]
    step_ns: float | None
    predicted_step_ns: float | None
    predicted_least_ns: float | None
    """Lower end of the prediction's interval."""
    predicted_most_ns: float | None
    """Upper end of the prediction's interval."""
    change_ratio: float | None
    """Change of the step time as a ratio; negative: shorter."""
    stands_on: list[str]
    """Measurements and assumptions of the prediction."""
    reason: str | None
    """Reason for null numbers."""
