"""What sends the numbers of a running job elsewhere, and how it is found: by entry point, as a third party's would be.

A package adds one with `[project.entry-points."traincope.live_exporters"]`, e.g. `kafka = "my_package:start"`, and what
is to be sent once the run is over with `"traincope.finishing_exporters"`, e.g. `kafka = "my_package:finish"`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Protocol, runtime_checkable

from traincope.analysis import Analysis
from traincope.metrics import Sample
from traincope.timeline import Timeline

GROUP, FINISHING_GROUP = "traincope.live_exporters", "traincope.finishing_exporters"
IN_TREE = {
    "prometheus": "traincope_exporters.prometheus:start",
    "otlp": "traincope_exporters.pushing:start",
}
FINISHING_IN_TREE = {"otlp": "traincope_exporters.pushing:finish"}
"""Name -> where it lies: those of this package are there in a source checkout too, which has no entry points."""

Source = Callable[[], Sequence[Sample]]
"""The numbers as they stand; any thread may ask at any time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Whose numbers they are."""

    run: str
    host: str
    began_ns: int
    """Wall time since when counters count: the attempt's begin."""


class Running(Protocol):
    """An exporter at work."""

    @property
    def where(self) -> str:
        """A URL to tell people."""

    def stop(self) -> None:
        """Returns within a second or two; what is under way may be lost."""


@runtime_checkable
class Following(Protocol):
    """An exporter at work that wants more than numbers."""

    def follow(self, analysis: Analysis) -> None:
        """What a look at the job found: of its ledger the new steps are counted, its `faults` are those that are new.

        It is called where the job is looked at, and must not wait.
        """


class Start(Protocol):
    """What an entry point leads to."""

    def __call__(self, source: Source, *, origin: Origin, environment: Mapping[str, str]) -> Running | None:
        """Begin; None where `environment` does not ask for this exporter.

        Raises TraincopeError, in one sentence, where it is asked for and cannot be.
        """


class Finish(Protocol):
    """What an entry point of those that take a whole run leads to."""

    def __call__(self, environment: Mapping[str, str]) -> Callable[[Timeline], None] | None:
        """What to do with a run that is over; None where `environment` does not ask for it.

        Raises TraincopeError, in one sentence, where it is asked for and cannot be; so does what is returned.
        """


def found() -> Iterator[tuple[str, Callable[[], Start]]]:
    """(name, what imports it) of every exporter that is installed; of one name the first, ours before others'."""
    yield from _ways(GROUP, IN_TREE).items()


def finishing() -> Iterator[tuple[str, Callable[[], Finish]]]:
    """Likewise, of those that take a run that is over."""
    yield from _ways(FINISHING_GROUP, FINISHING_IN_TREE).items()


def _ways(group: str, in_tree: Mapping[str, str]) -> dict[str, Callable[[], Any]]:
    ways = {name: _importing(where) for name, where in in_tree.items()}
    for point in entry_points(group=group):
        ways.setdefault(point.name, point.load)
    return ways


def _importing(where: str) -> Callable[[], Any]:
    module, _, name = where.partition(":")
    return lambda: getattr(import_module(module), name)
