"""Exports by name: ours, those of installed packages, and what is said of the others."""

import sys
from importlib.metadata import EntryPoint

import pytest

from traincope.errors import MissingDependencyError, UsageError
from traincope_exporters import registry
from traincope_exporters.exports import CollectorExport, DirectoryExport, TextExport
from traincope_exporters.folded import EXPORT
from traincope_exporters.registry import BUILT_IN, export_named, export_names


def installed(monkeypatch: pytest.MonkeyPatch, *entries: EntryPoint) -> None:
    monkeypatch.setattr(registry, "_installed", lambda: entries)


def test_all_of_ours_are_found_by_their_names() -> None:
    kinds = {name: type(export_named(name)) for name in BUILT_IN}
    assert kinds == {
        "perfetto": TextExport,
        "parquet": DirectoryExport,
        "folded": TextExport,
        "speedscope": TextExport,
        "openmetrics": TextExport,
        "otlp": CollectorExport,
    }


def test_another_package_adds_one_by_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = EntryPoint(name="theirs", value="traincope_exporters.folded:EXPORT", group="traincope.exporters")
    installed(monkeypatch, theirs)
    assert export_named("theirs") is EXPORT
    assert export_names()[-1] == "theirs"


def test_one_of_ours_is_not_replaced_by_another_package(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, EntryPoint(name="folded", value="json:dumps", group="traincope.exporters"))
    assert export_named("folded") is EXPORT


def test_what_is_no_export_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, EntryPoint(name="odd", value="json:dumps", group="traincope.exporters"))
    with pytest.raises(UsageError, match="the export odd is none"):
        export_named("odd")


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="no export 'flame'; there are perfetto, parquet, folded, speedscope"):
        export_named("flame")


def test_a_package_that_is_not_installed_is_named_with_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "traincope_exporters.parquet", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match=r"parquet needs pyarrow.*pip install 'traincope\[view\]'"):
        export_named("parquet")
