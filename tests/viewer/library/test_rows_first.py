"""A run of very many ranks opens from rows and last records; its events are read when they are asked for."""

import io
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console

from tests.summaries.test_summaries import RANKS, write_job
from tests.viewer.library.reading import Here
from tests.viewer.texts import texts
from traincope.analysis import Analysis
from traincope.errors import DataError
from traincope.report.document.job_summary import SummaryDocument
from traincope.report.sections.job_summary import job_summary
from traincope.report.sections.values import sentences
from traincope.report.text.job_summary import render_summary
from traincope.summaries import reading
from traincope.viewer.app import _content, _pending
from traincope.viewer.library.analysis_process import Reading
from traincope.viewer.library.library import Library
from traincope.viewer.library.preparing import summarise
from traincope.viewer.pages import PAGES, Asked, Page, rows_page
from traincope.viewer.view import View


@dataclass(frozen=True, slots=True)
class SummaryHere:
    """Reads rows in the test's own process."""

    run: Path
    tiles: Path
    stage: str = ""

    def done(self) -> bool:
        return True

    def result(self) -> SummaryDocument:
        return summarise(self.run, self.tiles)

    def close(self) -> None:
        return


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    """A run whose rank 2 stands still, and whose rank 1 is slow. Its number of ranks counts as very many."""
    monkeypatch.setattr(reading, "MANY_RANKS", RANKS)
    run = write_job(tmp_path / "run")
    return Library([run], cache=tmp_path / "cache", begin=Here, begin_summary=SummaryHere)


def refresh(library: Library) -> None:
    """One round begins to read, the next one takes the result."""
    library.refresh()
    library.refresh()


def asked(library: Library) -> Asked:
    return Asked(view=View.of("/verdict", ""), opened=library[0], library=library, theme="light")


def test_the_first_page_stands_on_rows_and_says_so(library: Library) -> None:
    refresh(library)
    opened = library[0]
    assert opened.summary is not None
    assert (opened.document, opened.tiles) == (None, None)
    assert [(found["kind"], found["ranks"]) for found in opened.summary["verdict"]] == [
        ("stall", [2]),
        ("straggler", [1]),
    ]
    lines = texts(list(rows_page.render(asked(library), opened.summary)))
    assert lines[0] == (
        "This stands on 356 rows of steps 0-89, the newest ones of each rank, and on each rank's last records. The "
        "other pages need all events. "
    )
    assert lines[1] == "Read all events of 4 ranks"
    assert {"1. Stall", "2. Straggler", "forward", "57.5 %"} <= set(lines)
    file = io.StringIO()
    render_summary(opened.summary, Console(file=file, width=10_000))
    for sentence in (each for section in job_summary(opened.summary) for each in sentences(opened.summary, section)):
        assert sentence in file.getvalue()
        assert any(sentence in line for line in lines) or sentence.startswith("meaning, remedy")


@pytest.mark.parametrize(
    ("compared", "found"),
    [
        (5, "No hang and no failed rank; too few steps to name a straggler: 5 of 17."),
        (17, "Rows and last records show no hang, no failed rank and no straggler."),
    ],
)
def test_a_job_without_a_finding_says_what_was_looked_for(library: Library, compared: int, found: str) -> None:
    refresh(library)
    summary = library[0].summary
    assert summary is not None
    bare: SummaryDocument = {**summary, "verdict": [], "compared_steps": compared, "compared_steps_needed": 17}
    assert found in texts(list(rows_page.render(asked(library), bare)))


def test_nothing_more_is_read_unless_asked_for(library: Library) -> None:
    refresh(library)
    refresh(library)
    assert (library[0].document, library.busy) == (None, False)


def test_events_that_are_asked_for_are_read(library: Library) -> None:
    refresh(library)
    library.ask_for_events(0)
    assert library.is_reading_events(0)
    summary = library[0].summary
    assert summary is not None
    (sentence, *_) = texts(list(rows_page.render_other(asked(library), summary)))[1:]
    assert sentence == "The events of all ranks are being read. The pages open when they are ready."
    refresh(library)
    assert library[0].document is not None
    assert library[0].analysis is not None
    assert not library.is_reading_events(0)


def test_events_that_are_asked_for_while_rows_are_read_are_read_too(library: Library) -> None:
    library.refresh()
    library.ask_for_events(0)
    refresh(library)
    assert library[0].analysis is not None


def test_the_child_process_returns_the_summary(library: Library, tmp_path: Path) -> None:
    run = library[0].path
    child = Reading(run, tmp_path / "tiles", work=summarise)
    assert child.done(within_seconds=120)
    assert child.result() == summarise(run, tmp_path / "tiles")
    assert not (tmp_path / "tiles").exists()


@pytest.mark.parametrize(
    ("address", "request_number"),
    [("?detail=all", 1), ("", 0), ("?detail=rows", 0), ("?detail=all&request=2", 2), ("?detail=all&request=x", 1)],
)
def test_the_address_asks_for_events(address: str, request_number: int) -> None:
    assert rows_page.request_for_events(View.of("/verdict", address)) == request_number


class Fails(Here):
    """Events that cannot be read."""

    def result(self) -> Analysis:
        raise DataError("rank 3: segment 0 is damaged; copy it again")


def shown(library: Library, page: Page) -> list[str]:
    asked_for = Asked(view=View.of(f"/{page.slug}", "?detail=all"), opened=library[0], library=library, theme="light")
    return texts(list(_content(page, asked_for, _pending(page, library[0]))))


def test_a_failed_reading_of_events_leaves_the_rows_and_is_not_repeated(library: Library) -> None:
    """A page asks again whenever it is drawn. The run grows, so its rows are read again, and not its events."""
    library._begin_reading = Fails
    refresh(library)
    library.ask_for_events(0)
    refresh(library)
    failure = "The events could not be read: rank 3: segment 0 is damaged; copy it again"
    for page in (PAGES[0], PAGES[2]):
        lines = shown(library, page)
        assert lines[0] == failure
        assert "Read all events of 4 ranks" in lines
    assert "1. Stall" in shown(library, PAGES[0])
    library.ask_for_events(0)
    assert (library.busy, library.is_reading_events(0), library[0].failed_request) == (False, False, 1)
    segment = next(library[0].path.glob("attempt-*/rank-*/main-*.seg"))
    segment.write_bytes(segment.read_bytes()[:-56])
    library.refresh()
    assert isinstance(library._readings[0], SummaryHere)
    library.refresh()
    assert shown(library, PAGES[0])[0] == failure


def test_a_second_request_reads_the_events(library: Library) -> None:
    library._begin_reading = Fails
    refresh(library)
    library.ask_for_events(0)
    refresh(library)
    summary = library[0].summary
    assert summary is not None
    (sentence,) = (part for part in rows_page.render_other(asked(library), summary) if len(part.children) == 3)
    link = sentence.children[1].href
    assert link == "/verdict?detail=all&request=2"
    library._begin_reading = Here
    library.ask_for_events(0, request=rows_page.request_for_events(View.of(*link.split("?"))))
    assert library[0].events_problem is None
    refresh(library)
    opened = library[0]
    assert (opened.analysis is not None, opened.events_problem) == (True, None)


def test_rows_stay_when_the_run_cannot_be_read_any_more(library: Library) -> None:
    refresh(library)
    library[0].path.rename(library[0].path.with_name("moved"))
    library.refresh()
    for page in (PAGES[0], PAGES[2]):
        lines = shown(library, page)
        assert lines[0] == library[0].problem
        assert "Read all events of 4 ranks" in lines
