"""Kernel windows: at level 3 a few single steps are traced by torch's own profiler (Kineto).

Every rank traces the same steps, told by their numbers. Another profiler goes first: while one is
on, or the process runs under Nsight, a window is left out; and one that starts inside a window
finds the profiler free, for ours then ends early. What Kineto found is written by a thread of its
own to `kernels-step-<n>.json` in the rank's directory.
"""

import os
import threading
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
        self._writers: list[threading.Thread] = []

    def install(self, recorder: Recorder) -> None:
        self._kineto = Kineto()
        self._recorder = recorder
        self._patches.replace(*self._kineto.entrance, self._letting_go(self._kineto.enter))
        recorder.between_steps(self._between_steps)

    def remove(self) -> None:
        self._close("the run ended")
        self._patches.restore()
        self._recorder = None
        for writer in self._writers:
            writer.join()
        self._writers.clear()

    def _between_steps(self) -> None:
        self._close(None)
        if self._recorder is not None and self._taken < MOST:
            step = self._recorder.shared.step
            if step == FIRST or (step > 0 and step % EVERY == 0):
                self._open(self._recorder, step)

    def _open(self, recorder: Recorder, step: int) -> None:
        if self._kineto.is_on() or any(name in os.environ for name in OTHER_PROFILERS):
            recorder.event("kernel window left out", {"step": step, "why": "another profiler is on"})
            return
        self._kineto.start()
        self._step = step
        self._taken += 1

    def _close(self, cut_short: str | None) -> None:
        step, self._step = self._step, None
        if step is None or self._recorder is None:
            return
        traced = self._kineto.stop()
        if cut_short is not None:
            self._recorder.event("kernel window left out", {"step": step, "why": cut_short})
            return
        self._recorder.event("kernel window", {"step": step})
        path = self._recorder.directory / window_file(step)
        writer = threading.Thread(target=guard(traced.save), args=(str(path),), name="traincope-window")
        writer.start()
        self._writers.append(writer)

    def _letting_go(self, original: Any) -> Any:
        close = guard(self._close)

        def prepare(*args: Any, **kwargs: Any) -> Any:
            close("another profiler started")
            return original(*args, **kwargs)

        return prepare
