"""The steps from one checkpoint to the next, from what a save costs and how often the job fails."""

from dataclasses import dataclass

from traincope.plan.cadence import RANK_MTBF_SECONDS, Failures, daly_seconds, job_mtbf


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An interval between checkpoints, and what it follows from."""

    steps: int
    save_seconds: float
    """Mean time that the training stopped for a save."""
    step_seconds: float
    """Mean time of a step since the checkpoint before, without saves."""
    mtbf_seconds: float
    """Mean time between failures of the whole job."""


class Cadence:
    """Chooses the interval anew after each save of an attempt."""

    def __init__(self, *, mtbf_hours: float | None, ranks: int, interruptions: int) -> None:
        """`mtbf_hours` is what the user expects of the whole job; None: as in `RANK_MTBF_SECONDS`."""
        expected = job_mtbf(part_mtbf_seconds=RANK_MTBF_SECONDS, parts=ranks)
        self._expected = expected if mtbf_hours is None else mtbf_hours * 3600
        self._interruptions = interruptions
        self._stopped: list[float] = []

    def after_save(self, *, done: int, steps: int, training_seconds: float, save_seconds: float) -> Interval:
        """Return the interval after a save that followed `steps` steps in `training_seconds`; `done` counts all steps.

        The time between failures is the expected one until this run shows another: it counts as one failure in that
        time, to which the run's own time and interruptions are added (the mean of a gamma posterior).
        """
        self._stopped.append(save_seconds)
        stopped, step_seconds = sum(self._stopped) / len(self._stopped), training_seconds / steps
        mtbf = (self._expected + done * step_seconds) / (1 + self._interruptions)
        best = daly_seconds(Failures(mtbf_seconds=mtbf, save_seconds=stopped))
        return Interval(
            steps=max(1, round(best / step_seconds)), save_seconds=stopped, step_seconds=step_seconds, mtbf_seconds=mtbf
        )
