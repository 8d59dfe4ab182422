"""Kernel windows: at level 3 a few single steps are traced by torch's own profiler (Kineto).

Every rank traces the same steps, told by their numbers. Another profiler goes first: while one is
on, or the process runs under Nsight, a window is left out; and one that starts inside a window
finds the profiler free, for ours then ends early. What Kineto found goes to
`kernels-step-<n>.json` in the rank's directory.

A window begins and ends with the GPU idle: of kernels that are only queued, those of the step before
would fall into it, and the step's own last ones would be missing.

The training stands still meanwhile, some 30 us for every operator of the step: torch holds the
interpreter's lock while it collects and writes a trace, so a thread of ours would change nothing.
How long it stood is told with the window; a step that is long is left out, and so is every later
one once it has stood for long.
"""

import os
from time import monotonic_ns
from typing import Any

from traincope.record.guard import guard
from traincope.record.patching import Patches
from traincope.record.recorder import Recorder
from traincope.record.torch_private import Kineto
from traincope.store.layout import window_file

FIRST = 10
"""Step of the first window: by then a training has warmed up."""
EVERY = 1_000
MOST = 16
"""Windows of a run: a trace of a step is tens of megabytes on a large GPU."""
LONGEST_STEP_SECONDS = 10.0
"""A step is as long as the one before it; nothing ends a trace inside one, and every operator takes its memory."""
LONGEST_STANDSTILL_SECONDS = 5.0
"""What the run's last window may have cost."""
OTHER_PROFILERS = ("NSYS_PROFILING_SESSION_ID", "NVTX_INJECTION64_PATH")
"""Set in a process that Nsight watches: it and Kineto share one device interface."""


class KernelWindows:
    """Hook on nothing but the boundaries of steps, and on the start of other profilers."""

    name = "windows"
    level = 3

    def __init__(self) -> None:
        self._patches = Patches()
        self._recorder: Recorder | None = None
        self._step: int | None = None
        """The step that is being traced."""
        self._taken = 0
        self._stood_seconds = 0.0
        """How long the training stood still for the last one."""

    def install(self, recorder: Recorder) -> None:
        self._kineto = Kineto()
        self._recorder = recorder
        self._patches.replace(*self._kineto.entrance, self._letting_go(self._kineto.enter))
        recorder.between_steps(self._between_steps)

    def remove(self) -> None:
        self._close("the run ended")
        self._patches.restore()
        self._recorder = None

    def _between_steps(self) -> None:
        self._close(None)
        if self._recorder is not None and self._taken < MOST:
            step = self._recorder.shared.step
            if step == FIRST or (step > 0 and step % EVERY == 0):
                self._open(self._recorder, step)

    def _open(self, recorder: Recorder, step: int) -> None:
        why = self._reason_not_to(recorder)
        if why is not None:
            recorder.event("kernel window left out", {"step": step, "why": why})
            return
        _finish_queued()
        self._kineto.start()
        self._step = step
        self._taken += 1

    def _reason_not_to(self, recorder: Recorder) -> str | None:
        if self._kineto.is_on() or any(name in os.environ for name in OTHER_PROFILERS):
            return "another profiler is on"
        if recorder.steps.latest is not None and recorder.steps.latest[1] > LONGEST_STEP_SECONDS * 1e9:
            return f"the step before took over {LONGEST_STEP_SECONDS:.0f} s"
        if self._stood_seconds > LONGEST_STANDSTILL_SECONDS:
            return f"the training stood still {self._stood_seconds:.1f} s for the one before"
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
        self._stood_seconds = (monotonic_ns() - began_ns) / 1e9
        self._recorder.event("kernel window", {"step": step, "stood_still_seconds": round(self._stood_seconds, 3)})

    def _letting_go(self, original: Any) -> Any:
        close = guard(self._close)

        def prepare(*args: Any, **kwargs: Any) -> Any:
            close("another profiler started")
            return original(*args, **kwargs)

        return prepare


def _finish_queued() -> None:
    """Wait for the GPU, if there is one in use; inside a capture that would spoil the graph."""
    import torch

    if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
        torch.cuda.synchronize()
