"""Hook for kernel windows: torch's own profiler (Kineto) traces a few single steps at level 3, and requested steps.

Every rank traces the same step numbers. Another profiler has precedence: while one is on, or under Nsight, a window is
left out. If one starts inside a window, ours ends early and leaves the profiler free. The trace is written to
`kernels-step-<n>.json` in the rank's directory.

A window begins and ends with an idle GPU. Otherwise queued kernels of the previous step would fall into it, and the
last kernels of its own step would be missing.

The training pauses while torch collects and writes a trace, some 30 us per operator of the step. torch holds the GIL,
so another thread would not help. The pause is recorded with the window. A window is left out if the step is long, and
all later ones after a long pause.
"""

import os
from time import monotonic_ns
from typing import Any

from traincope.record.instrumentation.guard import guard
from traincope.record.instrumentation.patching import Patches
from traincope.record.instrumentation.torch_private import Kineto
from traincope.record.session.recorder import Recorder
from traincope.store.layout import window_file

FIRST = 10
"""Step of the first window: by then a training has warmed up."""
EVERY = 1_000
MAX_WINDOWS = 16
"""Maximum number of windows in a run: the trace of one step is tens of megabytes on a large GPU."""
MAX_REQUESTED = 64
"""Maximum number of requested steps that a run traces."""
MAX_STEP_SECONDS = 10.0
"""Maximum time of the previous step, as an estimate of the next. A trace cannot end inside a step and grows with it."""
MAX_STANDSTILL_SECONDS = 5.0
"""Maximum pause for the previous window."""
OTHER_PROFILERS = ("NSYS_PROFILING_SESSION_ID", "NVTX_INJECTION64_PATH")
"""Variables of a process under Nsight, which shares one device interface with Kineto."""


class KernelWindows:
    """Hook on the boundaries of steps and on the start of other profilers."""

    name = "windows"
    level = 3

    def __init__(self) -> None:
        self._patches = Patches()
        self._recorder: Recorder | None = None
        self._step: int | None = None
        """The step that is being traced."""
        self._num_windows = self._num_requested = 0
        self._standstill_seconds = 0.0
        """Pause of the training for the last window."""

    def install(self, recorder: Recorder) -> None:
        self._kineto = Kineto()
        self._recorder = recorder
        self._patches.replace(*self._kineto.entrance, self._closing_before(self._kineto.enter))
        recorder.between_steps(self._between_steps)

    def remove(self) -> None:
        self._close("the run ended")
        self._patches.restore()
        self._recorder = None

    def _between_steps(self) -> None:
        self._close(None)
        if self._recorder is None:
            return
        step = self._recorder.shared.step
        if self._recorder.control.traces(step):
            if self._num_requested < MAX_REQUESTED:
                self._num_requested += self._open(self._recorder, step)
        elif self._num_windows < MAX_WINDOWS and (self._recorder.level or 0) >= self.level and is_regular(step):
            self._num_windows += self._open(self._recorder, step)

    def _open(self, recorder: Recorder, step: int) -> bool:
        """Begin to trace a step unless there is a reason not to. Returns whether it began."""
        why = self._reason_to_skip(recorder)
        if why is not None:
            recorder.event("kernel window left out", {"step": step, "why": why})
            return False
        _finish_queued()
        self._kineto.start()
        self._step = step
        return True

    def _reason_to_skip(self, recorder: Recorder) -> str | None:
        if self._kineto.is_on() or any(name in os.environ for name in OTHER_PROFILERS):
            return "another profiler is on"
        if recorder.steps.latest is not None and recorder.steps.latest.wall_ns > MAX_STEP_SECONDS * 1e9:
            return f"the previous step took over {MAX_STEP_SECONDS:.0f} s"
        if self._standstill_seconds > MAX_STANDSTILL_SECONDS:
            return f"the previous window paused the training for {self._standstill_seconds:.1f} s"
        return None

    def _close(self, cut_short: str | None) -> None:
        step, self._step = self._step, None
        if step is None or self._recorder is None:
            return
        if cut_short is None:
            _finish_queued()
        began_ns = monotonic_ns()
        traced = self._kineto.stop()
        if cut_short is not None:
            self._recorder.event("kernel window left out", {"step": step, "why": cut_short})
            return
        traced.save(str(self._recorder.directory / window_file(step)))
        self._standstill_seconds = (monotonic_ns() - began_ns) / 1e9
        self._recorder.event("kernel window", {"step": step, "stood_still_seconds": round(self._standstill_seconds, 6)})

    def _closing_before(self, original: Any) -> Any:
        close = guard(self._close)

        def prepare(*args: Any, **kwargs: Any) -> Any:
            close("another profiler started")
            return original(*args, **kwargs)

        return prepare


def is_regular(step: int) -> bool:
    """Return whether a run at level 3 traces this step without a request."""
    return step == FIRST or (step > 0 and step % EVERY == 0)


def _finish_queued() -> None:
    """Wait for the GPU, if one is in use. Inside a capture a wait would spoil the graph."""
    import torch

    if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
        torch.cuda.synchronize()
