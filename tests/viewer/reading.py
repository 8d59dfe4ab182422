"""Runs read where the test is, without a child process."""

from dataclasses import dataclass
from pathlib import Path

from traincope.analysis import Analysis
from traincope.viewer.library import Library
from traincope.viewer.preparing import prepare


@dataclass(frozen=True, slots=True)
class Here:
    """Is read when it is asked for."""

    run: Path
    tiles: Path

    def done(self) -> bool:
        return True

    def result(self) -> Analysis:
        return prepare(self.run, self.tiles)

    def close(self) -> None:
        return


def shelf(*runs: Path, cache: Path, price_per_gpu_hour: float | None = None) -> Library:
    """A library that has read them all."""
    library = Library(runs, cache=cache, begin=Here, price_per_gpu_hour=price_per_gpu_hour)
    reread(library)
    return library


def reread(library: Library) -> None:
    """One is begun, and one taken, in each round."""
    for _ in range(len(library) + 1):
        library.refresh()
