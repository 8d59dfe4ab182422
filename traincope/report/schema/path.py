"""Types of predictions from the critical path."""

from typing import TypedDict


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
