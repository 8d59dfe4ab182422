"""The verdict on a running job so far, judged again and again by a child process.

The job runs next to it. So the child process is nice, rests much longer than it works, and reads rows instead of events
where there are many of these.
"""

import os
import threading
import time
from pathlib import Path

from traincope.errors import TraincopeError
from traincope.report.so_far import VerdictSoFar, verdict_so_far
from traincope.viewer.library.analysis_process import Reading
from traincope.viewer.library.preparing import Report

REST_SECONDS = 10.0
"""Least time between two verdicts."""
EARLY_SECONDS = 120.0
"""Time for which it rests no longer: early steps change the verdict most."""
RESTS_PER_WORK = 20.0
"""Later it rests this many times as long as it worked: about 5 % of a core."""
MAX_BYTES = 128 << 20
"""Most bytes of records of which events are read."""
POLL_SECONDS = 0.5
NICEST = 19


def judge(run: Path, _tiles: Path, _report: Report = lambda _: None) -> VerdictSoFar:
    """Judge the run. Raises as `verdict_so_far`."""
    os.nice(NICEST)
    return verdict_so_far(run, max_bytes=MAX_BYTES)


class Judge:
    """Thread that keeps the latest verdict, until `stop`."""

    def __init__(self, run: Path) -> None:
        self.verdict: VerdictSoFar | None = None
        self.problem: str | None = None
        """One sentence: the reason why the last attempt gave no verdict."""
        self._run = run
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._judge, name="judge", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _judge(self) -> None:
        rest_seconds, started = 0.0, time.monotonic()
        while not self._stopping.wait(rest_seconds):
            began = time.monotonic()
            reading = Reading(self._run, self._run, work=judge)
            try:
                while not reading.done(within_seconds=POLL_SECONDS) and not self._stopping.is_set():
                    pass
                if not self._stopping.is_set():
                    self.verdict, self.problem = reading.result(), None
            except TraincopeError as error:
                self.problem = str(error)
            finally:
                reading.close()
            now = time.monotonic()
            is_early = now - started < EARLY_SECONDS
            rest_seconds = REST_SECONDS if is_early else max(REST_SECONDS, RESTS_PER_WORK * (now - began))
