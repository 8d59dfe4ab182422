"""Tracker for Hugging Face's Accelerate."""

from typing import Any

from accelerate import __version__
from accelerate.tracking import GeneralTracker

import traincope
from traincope.integrations.recording import Recording
from traincope.record.run import Run, active_run


class AccelerateTracker(GeneralTracker):  # type: ignore[misc]
    """Records from `init_trackers` to `end_training`, with the numbers that `accelerator.log` receives, on every rank.

    >>> accelerator = Accelerator(log_with=[AccelerateTracker()])
    >>> accelerator.init_trackers("my-project")

    `accelerator.log({"step_tokens": n})` gives this rank's tokens of the step.
    """

    name = "traincope"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, run: Run | None = None) -> None:
        """`run`: `traincope.run(...)` with settings. It is not used if another run records already."""
        super().__init__()
        self._recording = Recording(run)

    @property
    def tracker(self) -> Run | None:
        """The run that records."""
        return active_run()

    def start(self) -> None:
        self._recording.begin({"trainer": f"accelerate {__version__}"})
        self._recording.train()

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Describe the training by its hyperparameters."""
        if self.tracker is not None:
            self.tracker.describe(**values)

    def log(self, values: dict[str, Any], **_: Any) -> None:
        """Log the numbers among `values` as those of the step under way. Accelerate's `step` is not used."""
        traincope.log(**{name: value for name, value in values.items() if isinstance(value, int | float)})

    def finish(self) -> None:
        self._recording.end()
