"""Runs read in the test's own process."""

import time
from dataclasses import dataclass
from pathlib import Path

from traincope.analysis import Analysis
from traincope.viewer.library.library import Library
from traincope.viewer.library.preparing import Report, prepare


@dataclass(frozen=True, slots=True)
class Here:
    """Reads on request."""

    run: Path
    tiles: Path
    stage: str = ""

    def done(self) -> bool:
        return True

    def result(self) -> Analysis:
        return prepare(self.run, self.tiles)

    def close(self) -> None:
        return


def prepare_step_by_step(run: Path, tiles: Path, report: Report) -> Analysis:
    """Read a run in a child process, which goes on after what it reports first when `go_on(run)` exists."""

    def and_wait(text: str) -> None:
        report(text)
        while not go_on(run).exists():
            time.sleep(0.05)

    return prepare(run, tiles, and_wait)


def go_on(run: Path) -> Path:
    return run.with_name("go on")


def shelf(*runs: Path, cache: Path, price_per_gpu_hour: float | None = None) -> Library:
    """A library that has read all its runs."""
    library = Library(runs, cache=cache, begin=Here, price_per_gpu_hour=price_per_gpu_hour)
    reread(library)
    return library


def reread(library: Library) -> None:
    """Read again: each round begins one run and collects one."""
    for _ in range(len(library) + 1):
        library.refresh()
