"""Exports by name: built-in, from installed packages, and unknown ones."""

import sys
from importlib.metadata import EntryPoint

import pytest

from traincope.errors import MissingDependencyError, UsageError
from traincope.report import exports
from traincope.report.exports import BUILT_IN, CollectorExport, DirectoryExport, TextExport, export_named, export_names
from traincope_exporters.traces.folded import EXPORT


def installed(monkeypatch: pytest.MonkeyPatch, *entries: EntryPoint) -> None:
    monkeypatch.setattr(exports, "_installed", lambda: entries)


def test_built_in_exports_are_found_by_name() -> None:
    kinds = {name: type(export_named(name)) for name in BUILT_IN}
    assert kinds == {
        "perfetto": TextExport,
        "perfetto-hosts": DirectoryExport,
        "parquet": DirectoryExport,
        "folded": TextExport,
        "speedscope": TextExport,
        "openmetrics": TextExport,
        "otlp": CollectorExport,
    }


def test_another_package_adds_one_by_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = EntryPoint(name="theirs", value="traincope_exporters.traces.folded:EXPORT", group="traincope.exporters")
    installed(monkeypatch, theirs)
    assert export_named("theirs") is EXPORT
    assert export_names()[-1] == "theirs"


def test_another_package_cannot_replace_a_built_in_export(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, EntryPoint(name="folded", value="json:dumps", group="traincope.exporters"))
    assert export_named("folded") is EXPORT


def test_an_object_that_is_not_an_export_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, EntryPoint(name="odd", value="json:dumps", group="traincope.exporters"))
    with pytest.raises(UsageError, match="the export odd is invalid"):
        export_named("odd")


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(
        UsageError, match="unknown export 'flame'; known exports: perfetto, perfetto-hosts, parquet, folded"
    ):
        export_named("flame")


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "traincope_exporters.parquet", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match=r"parquet needs pyarrow.*pip install 'traincope\[view\]'"):
        export_named("parquet")
