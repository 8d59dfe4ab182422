"""Protocol of live exporters, which send the numbers of a running job elsewhere. Entry points find them.

A package adds an exporter with `[project.entry-points."traincope.live_exporters"]`, for example `kafka =
"my_package:start"`. An exporter for finished runs uses `"traincope.finishing_exporters"`, for example `kafka =
"my_package:finish"`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Protocol, runtime_checkable

from traincope.analysis import Analysis
from traincope.metrics.installed import LIVE_GROUP
from traincope.metrics.sample import Sample
from traincope.timeline import Timeline

FINISHING_GROUP = "traincope.finishing_exporters"

Source = Callable[[], Sequence[Sample]]
"""Function that returns the current samples. Any thread may call it at any time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Run and host of the numbers."""

    run: str
    host: str
    began_ns: int
    """Wall time at which counters start: the beginning of the attempt."""


class Running(Protocol):
    """A running exporter."""

    @property
    def where(self) -> str:
        """URL to show to people."""

    def stop(self) -> None:
        """Stop within about two seconds. Data in flight may be lost."""


@runtime_checkable
class Following(Protocol):
    """A running exporter that also receives analyses."""

    def follow(self, analysis: Analysis) -> None:
        """Receive the result of one look. Its ledger counts the new steps, and its `faults` are the new ones.

        The agent's main thread calls it, so it must not block.
        """


class Start(Protocol):
    """Function of an entry point for live exporters."""

    def __call__(self, source: Source, *, origin: Origin, environment: Mapping[str, str]) -> Running | None:
        """Start the exporter; None if `environment` does not enable it.

        Raises TraincopeError with one sentence if it is enabled and cannot start.
        """


class Finish(Protocol):
    """Function of an entry point for exporters of finished runs."""

    def __call__(self, environment: Mapping[str, str]) -> Callable[[Timeline], None] | None:
        """Function to call with the finished run; None if `environment` does not enable it.

        Both raise TraincopeError with one sentence if it is enabled and fails.
        """


def live_exporters() -> Iterator[tuple[str, Callable[[], Start]]]:
    """(Name, function that imports it) of each installed live exporter."""
    yield from _loaders(LIVE_GROUP).items()


def finishing_exporters() -> Iterator[tuple[str, Callable[[], Finish]]]:
    """(Name, function that imports it) of each installed exporter of finished runs."""
    yield from _loaders(FINISHING_GROUP).items()


def _loaders(group: str) -> dict[str, Callable[[], Any]]:
    """Name -> loader of the entry points. If two share a name, the first counts."""
    loaders: dict[str, Callable[[], Any]] = {}
    for point in entry_points(group=group):
        loaders.setdefault(point.name, point.load)
    return loaders
