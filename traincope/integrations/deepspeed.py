"""Monitor for DeepSpeed's engine."""

from collections.abc import Sequence
from typing import Any

import traincope
from traincope.integrations.training.recording import Recording
from traincope.record.instrumentation.guard import guard
from traincope.record.run import Run


class DeepSpeedMonitor:
    """Records an engine's training from here to the end of the process, with the events of DeepSpeed's monitor.

    >>> engine, *_ = deepspeed.initialize(...)
    >>> engine.monitor = DeepSpeedMonitor(engine)

    Make it after `engine.load_checkpoint`, so that the steps continue. Every rank records. DeepSpeed sends events on
    rank 0 only: the learning rate, the scale of the loss, and the loss of a pipeline whose own monitor is enabled. The
    engine's own monitor still receives each event.
    """

    def __init__(self, engine: Any, run: Run | None = None) -> None:
        """`run`: `traincope.run(...)` with settings. It is not used if another run records already."""
        import deepspeed
        from deepspeed.runtime.pipe.engine import PipelineEngine

        self._monitor = engine.monitor
        # A pipeline with an enabled monitor broadcasts its loss and waits for the device.
        self.enabled = self._monitor.enabled if isinstance(engine, PipelineEngine) else True
        self._recording = Recording(run)
        model = type(engine.module).__name__
        self._recording.begin({"trainer": f"deepspeed {deepspeed.__version__}", "model": model})
        self._recording.train(step=engine.global_steps)

    def write_events(self, events: Sequence[tuple[str, Any, int]]) -> None:
        """Log the values of (name, value, number of samples)."""
        guard(self._log)(events)
        if self._monitor.enabled:
            self._monitor.write_events(events)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._monitor, name)

    def _log(self, events: Sequence[tuple[str, Any, int]]) -> None:
        traincope.log(**{name: value for name, value, _ in events})
