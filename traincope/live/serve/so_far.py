"""The verdict on a running job so far: that of the report, judged again and again by a child process.

The job runs next to it. So the child process is nice, rests much longer than it works, and reads rows instead of events
where there are many of these.
"""

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from traincope.analysis import FindingKind, analyze
from traincope.errors import TraincopeError
from traincope.report import summary_document, to_document
from traincope.report.schema import Finding
from traincope.store.layout import record_files
from traincope.summaries import job_summary, read_summaries
from traincope.summaries.reading import is_for_rows
from traincope.timeline import open_run
from traincope.viewer.library.analysis_process import Reading
from traincope.viewer.library.preparing import Report

REST_SECONDS = 10.0
"""Least time between two verdicts."""
RESTS_PER_WORK = 20.0
"""It rests this many times as long as it worked: about 5 % of a core."""
MAX_BYTES = 128 << 20
"""Most bytes of records of which events are read."""
POLL_SECONDS = 0.5
NICEST = 19


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictSoFar:
    """The findings of the report at one instant."""

    findings: tuple[Finding, ...]
    """Without the one that the job runs: the page says that itself."""
    by_rows: bool
    """True if rows of steps and last records were read, not all events."""
    at_ns: int
    """Time at which the run was read, by `time.monotonic_ns()`."""


def judge(run: Path, _tiles: Path, _report: Report = lambda _: None) -> VerdictSoFar:
    """Judge the run as `traincope report` does. Raises TraincopeError where it cannot be read."""
    os.nice(NICEST)
    at_ns, by_rows = time.monotonic_ns(), is_for_rows(run) or _size(run) > MAX_BYTES
    if by_rows:
        findings = summary_document(job_summary(read_summaries(run)))["verdict"]
    else:
        findings = to_document(analyze(open_run(run)))["verdict"]
    others = tuple(finding for finding in findings if finding["kind"] != FindingKind.RUNNING)
    return VerdictSoFar(findings=others, by_rows=by_rows, at_ns=at_ns)


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
        rest_seconds = 0.0
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
            rest_seconds = max(REST_SECONDS, RESTS_PER_WORK * (time.monotonic() - began))


def _size(run: Path) -> int:
    """Bytes of all records. A file that is compacted meanwhile counts as nothing."""
    total = 0
    for rank in run.glob("attempt-*/rank-*"):
        for path in record_files(rank):
            try:
                total += path.stat().st_size
            except FileNotFoundError:
                continue
    return total
