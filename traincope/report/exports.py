"""Exports of a finished run by name: a text, a directory of files, or messages to a collector.

An exporter is one module with an `EXPORT` of one of these kinds, and one line in `BUILT_IN`. Other packages register
theirs as entry points `traincope.exporters`. Exporters import this module; this module imports no exporter.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from traincope.errors import MissingDependencyError, RunDirectoryError, UsageError
from traincope.timeline import Timeline

GROUP = "traincope.exporters"
"""Entry points of this group are exports by name."""

BUILT_IN: Mapping[str, str] = {
    "perfetto": "traincope_exporters.traces.perfetto",
    "perfetto-hosts": "traincope_exporters.traces.perfetto_hosts",
    "parquet": "traincope_exporters.parquet",
    "folded": "traincope_exporters.traces.folded",
    "speedscope": "traincope_exporters.traces.speedscope",
    "openmetrics": "traincope_exporters.openmetrics",
    "otlp": "traincope_exporters.otlp",
}
"""Name -> module. Listed here so that a source checkout has them too."""

EXTRAS: Mapping[str, str] = {
    "pyarrow": "traincope[view]",
    "opentelemetry": "traincope[otel]",
    "grpc": "traincope[otel]",
}
"""Optional package -> the extra that installs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextExport:
    """One file of text, or the standard output."""

    suffix: str
    """End of the file's default name, after the run's name: `perfetto.json`."""
    pieces: Callable[[Timeline], Iterator[str]]
    """The text in pieces, the same for the same run. Raises DataError if the run has nothing to show."""
    hint: str
    """The program that opens the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryExport:
    """A directory of files."""

    suffix: str
    write: Callable[[Timeline, Path], None]
    """Write into an existing empty directory. Raises DataError if the run has nothing to show, OSError on failure."""
    hint: str
    write_ranks: Callable[[Path, Path], None] | None = None
    """The same as `write`, from the run's directory instead of its timeline: it holds one rank at a time. Raises like
    `open_run` too. None: the export needs all ranks at once.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The address of a collector."""

    endpoint: str | None
    """URL; None: from the environment, otherwise this machine."""
    protocol: str | None
    """`grpc` or `http`; None: from the environment, otherwise by the endpoint's port."""
    timeout_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorExport:
    """Messages to a collector process."""

    send: Callable[[Timeline, Address], str]
    """Send the run; return one sentence on what was sent. Raises ServerError if the collector refuses it."""


Export = TextExport | DirectoryExport | CollectorExport


def require_steps(timeline: Timeline, *, export: str) -> None:
    """Raise RunDirectoryError if no rank recorded a complete step."""
    if any(rank.steps for rank in timeline.ranks):
        return
    path = timeline.run.path
    if timeline.run.logbook is not None:
        raise RunDirectoryError(f"{path} is a list of interruptions: {export} needs a run that ranks recorded")
    if timeline.run.info.imported:
        raise RunDirectoryError(f"{path} was imported: {export} cannot show its kernel traces; use --to perfetto")
    raise RunDirectoryError(
        f"{path} holds no complete step, so {export} has nothing to show; try again when a step is complete"
    )


def export_named(name: str) -> Export:
    """Return an export by name.

    Raises UsageError for an unknown name, MissingDependencyError if a package that it needs is not installed.
    """
    try:
        if name in BUILT_IN:
            return _checked(name, import_module(BUILT_IN[name]).EXPORT)
        installed = {entry.name: entry for entry in _installed()}
        if name in installed:
            return _checked(name, installed[name].load())
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        remedy = f"pip install '{EXTRAS[missing]}'" if missing in EXTRAS else "install it"
        raise MissingDependencyError(
            f"the export {name} needs {error.name}, which is not installed: {remedy}"
        ) from error
    raise UsageError(f"unknown export {name!r}; known exports: {', '.join(export_names())}")


def export_names() -> tuple[str, ...]:
    """All names, those of this package first."""
    return (*BUILT_IN, *sorted({entry.name for entry in _installed()} - BUILT_IN.keys()))


def _installed() -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=GROUP))


def _checked(name: str, candidate: object) -> Export:
    if isinstance(candidate, TextExport | DirectoryExport | CollectorExport):
        return candidate
    raise UsageError(
        f"the export {name} is invalid: {candidate!r} must be a TextExport, DirectoryExport or CollectorExport"
    )
