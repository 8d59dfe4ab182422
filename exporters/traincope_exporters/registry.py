"""The exports there are: those of this package, and those that installed packages name."""

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from traincope.errors import MissingDependencyError, UsageError
from traincope_exporters.exports import CollectorExport, DirectoryExport, Export, TextExport

GROUP = "traincope.exporters"
"""Entry points of this group are exports by name."""

BUILT_IN: Mapping[str, str] = {
    "perfetto": "traincope_exporters.perfetto",
    "parquet": "traincope_exporters.parquet",
    "folded": "traincope_exporters.folded",
    "speedscope": "traincope_exporters.speedscope",
    "openmetrics": "traincope_exporters.openmetrics",
    "otlp": "traincope_exporters.otlp",
}
"""Name -> module. Here, so that they are found in a source checkout too."""

NEEDED: Mapping[str, str] = {
    "pyarrow": "traincope[view]",
    "opentelemetry": "traincope[otel]",
    "grpc": "traincope[otel]",
}
"""Package that may be absent -> what brings it."""


def export_named(name: str) -> Export:
    """Raises UsageError for a name that nobody has, MissingDependencyError where what it needs is not installed."""
    try:
        if name in BUILT_IN:
            return _checked(name, import_module(BUILT_IN[name]).EXPORT)
        theirs = {entry.name: entry for entry in _installed()}
        if name in theirs:
            return _checked(name, theirs[name].load())
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        remedy = f"pip install '{NEEDED[missing]}'" if missing in NEEDED else "install it"
        raise MissingDependencyError(
            f"the export {name} needs {error.name}, which is not installed: {remedy}"
        ) from error
    raise UsageError(f"there is no export {name!r}; there are {', '.join(export_names())}")


def export_names() -> tuple[str, ...]:
    """Those of this package first."""
    return (*BUILT_IN, *sorted({entry.name for entry in _installed()} - BUILT_IN.keys()))


def _installed() -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=GROUP))


def _checked(name: str, found: object) -> Export:
    if isinstance(found, TextExport | DirectoryExport | CollectorExport):
        return found
    raise UsageError(f"the export {name} is none: {found!r} is no TextExport, DirectoryExport or CollectorExport")
