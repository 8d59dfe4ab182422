"""Each run of the gallery has its expected verdict, and its page shows it."""

import pytest

from evaluation.gallery.record import EXHIBITS, ROOT, Exhibit
from traincope import analyze, open_run
from traincope.inject import read_truths
from traincope.store.layout import INJECTED_FILE

GALLERY = ROOT / "sample_runs" / "faults"
MAX_BYTES = 300 << 10


def test_the_gallery_is_the_list() -> None:
    assert {path.name for path in GALLERY.iterdir()} == {exhibit.name for exhibit in EXHIBITS}


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda exhibit: exhibit.name)
def test_the_report_begins_with_the_injected_fault(exhibit: Exhibit) -> None:
    analysis = analyze(open_run(GALLERY / exhibit.name))
    happened = [fault for fault in analysis.faults if not fault.is_mark]
    assert [fault.kind for fault in happened[:1]] == [*([] if exhibit.first_fault is None else [exhibit.first_fault])]
    if exhibit.finding is None:
        assert (happened[0].ranks, happened[0].step) == (exhibit.ranks, 8)
        assert exhibit.words in happened[0].what
    else:
        first = analysis.verdict[0]
        assert (first.kind, first.ranks) == (exhibit.finding, exhibit.ranks)
        assert exhibit.words in first.evidence
    truths = read_truths(GALLERY / exhibit.name / INJECTED_FILE)
    assert {truth.culprits for truth in truths} == {(1,)}


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda exhibit: exhibit.name)
def test_a_run_of_the_gallery_is_small_and_named_in_the_docs(exhibit: Exhibit) -> None:
    run = GALLERY / exhibit.name
    assert sum(path.stat().st_size for path in run.rglob("*") if path.is_file()) < MAX_BYTES
    page = (ROOT / "docs" / "start" / "gallery.md").read_text()
    assert f"traincope report sample_runs/faults/{exhibit.name}" in page
    assert exhibit.fault in page


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda exhibit: exhibit.name)
def test_no_file_of_the_gallery_has_a_path_of_the_machine(exhibit: Exhibit) -> None:
    for path in (GALLERY / exhibit.name).rglob("*"):
        assert not path.is_file() or b"/tmp/" not in path.read_bytes(), path
