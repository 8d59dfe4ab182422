"""What an export of a finished run is: a text, a directory of files, or messages to a collector.

An exporter is one module with an `EXPORT` of one of these kinds, and one line in `registry.BUILT_IN`; a package of
somebody else's names its own under the entry points `traincope.exporters`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from traincope.errors import RunDirectoryError
from traincope.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class TextExport:
    """One file of text, or the standard output."""

    suffix: str
    """Of the file's default name, after that of the run: `perfetto.json`."""
    pieces: Callable[[Timeline], Iterator[str]]
    """The text, piece by piece, the same for the same run. Raises DataError where the run holds nothing to show."""
    hint: str
    """What opens it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryExport:
    """A directory of files."""

    suffix: str
    write: Callable[[Timeline, Path], None]
    """Into a directory that exists and is empty. Raises DataError likewise, OSError where it cannot be written."""
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a collector listens."""

    endpoint: str | None
    """URL; None: as the environment says, else this machine."""
    protocol: str | None
    """`grpc` or `http`; None: as the environment says, else by the endpoint's port."""
    timeout_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorExport:
    """Messages to a process that listens."""

    send: Callable[[Timeline, Address], str]
    """Says in one sentence what was sent where. Raises ServerError where nobody took it."""


Export = TextExport | DirectoryExport | CollectorExport


def require_steps(timeline: Timeline, *, export: str) -> None:
    """Raises RunDirectoryError, in words, where no rank recorded a complete step."""
    if any(rank.steps for rank in timeline.ranks):
        return
    path = timeline.run.path
    if timeline.run.info.imported:
        raise RunDirectoryError(
            f"{path} was imported and holds kernel traces only, of which {export} can say nothing; "
            f"see them with --to perfetto"
        )
    raise RunDirectoryError(f"{path} holds no complete step, so there is nothing for {export}; try again once one is")
