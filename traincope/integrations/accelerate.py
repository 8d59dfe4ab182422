"""Tracker for Hugging Face's Accelerate."""

from typing import Any

from accelerate import __version__
from accelerate.tracking import GeneralTracker

from traincope.integrations.training.recording import Recording
from traincope.record.run import Run, active_run

AMOUNTS = ("step_tokens", "step_squared_lengths")
"""Names whose values are shares of each rank. Accelerate gives a tracker those of rank 0 only."""


class AccelerateTracker(GeneralTracker):  # type: ignore[misc]
    """Records from here to `end_training` or the end of the process, with the numbers of `accelerator.log`.

    >>> accelerator = Accelerator(log_with=[AccelerateTracker()])
    >>> accelerator.init_trackers("my-project")

    Every rank records. Accelerate calls its trackers on rank 0 only, so the numbers are those of rank 0.
    """

    name = "traincope"
    requires_logging_directory = False

    def __init__(self, run: Run | None = None) -> None:
        """`run`: `traincope.run(...)` with settings. It is not used if another run records already."""
        super().__init__()
        self._recording = Recording(run)
        self._recording.begin({"trainer": f"accelerate {__version__}"})

    @property
    def tracker(self) -> Run | None:
        """The run that records."""
        return active_run()

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Describe the training by its hyperparameters."""
        if self.tracker is not None:
            self.tracker.describe(**values)

    def log(self, values: dict[str, Any], **_: Any) -> None:
        """Log the numbers among `values` as those of the step under way. Accelerate's `step` is not used."""
        self._recording.train()  # now all trackers have started
        self._recording.log({name: value for name, value in values.items() if name not in AMOUNTS})

    def finish(self) -> None:
        self._recording.end()
