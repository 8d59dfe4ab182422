"""The one-file report in a real browser: no complaints, no requests, and the same numbers as the JSON."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

import traincope
from tests.browser.browser import Visit, close, open_page
from tests.report.example import analysis, without_steps
from tests.report.places import value_at
from tests.test_sample_runs import SAMPLES
from traincope.analysis import Fault, FaultKind
from traincope.analysis.context import Context
from traincope.report.document.document import to_document, to_json
from traincope.report.html import to_html
from traincope.report.sections.every import EVERY
from traincope.report.sections.forms import FORMS

Go = Callable[..., Visit]
ALWAYS = ("demo", "opt-175b")
"""Sample runs whose reports `make test` opens. `make test-engine` opens all."""
DEMO = next(path for path in SAMPLES if path.name == "demo")
HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>../../etc/passwd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """An open report, and the JSON of its run."""

    loaded: Visit
    url: str
    document: Any


NUMBERS = """() => [...document.querySelectorAll("data[data-at]")].map((n) => ({
  at: n.dataset.at, per: n.dataset.per ?? null, as: n.dataset.as, value: n.value, text: n.textContent
}))"""
DRAWN = """() => [...document.querySelectorAll(".plot")].map((place) => [
  place.id, place.querySelectorAll("svg .trace, svg .hm, svg .trace.bars, svg .slice, svg image").length > 0
])"""
LAID_OUT = """() => [...document.querySelectorAll("main *")].filter((e) =>
  e.getBoundingClientRect().right > document.documentElement.clientWidth + 1 && !e.closest(".scroll, .plot")
).map((e) => e.outerHTML.slice(0, 80))"""


def written(folder: Path, result: traincope.Analysis) -> str:
    """Write a report; returns its address."""
    page = folder / "report.html"
    page.write_text(to_html(result), encoding="utf-8")
    return page.as_uri()


def drawn(loaded: Visit) -> Visit:
    """Wait until the figures of the page are drawn."""
    loaded.page.wait_for_selector("html[data-drawn=yes]", state="attached")
    return loaded


def check_numbers(loaded: Visit, document: Any) -> int:
    """Check that every number on the page equals the document's, in its form; returns their count."""
    numbers = loaded.page.evaluate(NUMBERS)
    for number in numbers:
        value = value_at(document, number["at"], number["per"])
        assert float(number["value"]) == value, number
        assert number["text"] == FORMS[number["as"]](value), number
    return len(numbers)


@pytest.fixture(scope="module")
def reports(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], Report]]:
    """Reports of all sample runs, opened once; a test restores its changes."""

    opened: list[Visit] = []

    @cache
    def report(sample: Path) -> Report:
        result = traincope.analyze(traincope.open_run(sample))
        url = written(tmp_path_factory.mktemp("report"), result)
        opened.append(loaded := drawn(open_page(chromium, url)))
        return Report(loaded=loaded, url=url, document=json.loads(to_json(to_document(result))))

    yield report
    for loaded in opened:
        close(loaded)


@pytest.mark.parametrize(
    "sample",
    [pytest.param(path, id=path.name, marks=[] if path.name in ALWAYS else [pytest.mark.sweep]) for path in SAMPLES],
)
def test_every_sample_report_is_complete_and_equals_its_json(reports: Callable[[Path], Report], sample: Path) -> None:
    report = reports(sample)
    page = report.loaded.page
    assert report.loaded.complaints == []
    assert report.loaded.requests == [report.url]
    assert json.loads(page.locator("#document").text_content() or "") == report.document
    num_numbers, num_figures = (60, 7) if report.document["ledger"] else (15, 0)  # a logbook has few of either
    assert check_numbers(report.loaded, report.document) >= num_numbers
    figures = page.evaluate(DRAWN)
    assert len(figures) >= num_figures
    assert [name for name, done in figures if not done] == []
    assert page.evaluate(LAID_OUT) == []


def test_the_bars_of_the_waterfall_equal_the_json(reports: Callable[[Path], Report]) -> None:
    report = reports(DEMO)
    bars_of_page = report.loaded.page.evaluate("""() => { const place = document.getElementById("waterfall");
        return [place.layout.yaxis.ticktext, place.data[0].x] }""")
    bars = dict(zip(*bars_of_page, strict=True))
    shares = report.document["utilization"]["waterfall"]
    assert bars["MFU"] == shares["ideal"]
    assert {term: bars[term] for term in bars if term not in ("peak", "MFU")} == {
        term: share for term, share in shares.items() if share and abs(share) >= 0.0005 and term != "ideal"
    }


def test_a_stage_or_a_rank_can_be_chosen(reports: Callable[[Path], Report]) -> None:
    page = reports(DEMO).loaded.page
    mfu = "() => document.getElementById('waterfall').data[0].x.at(-1)"
    whole = page.evaluate(mfu)
    page.select_option("select[data-place=waterfall]", label="stage 1")
    assert page.evaluate(mfu) != whole
    page.select_option("select[data-place=waterfall]", label="job")
    assert page.evaluate(mfu) == whole
    assert reports(DEMO).loaded.complaints == []


def test_every_figure_and_table_has_a_name(reports: Callable[[Path], Report]) -> None:
    page = reports(DEMO).loaded.page
    for role in ("img", "region"):
        for row in page.locator(f"[role={role}]").all():
            assert len(row.get_attribute("aria-label") or "") > 5
    assert page.locator("h1").count() == 1
    assert page.locator("html").get_attribute("lang") == "en"


def test_the_report_works_by_keyboard(reports: Callable[[Path], Report]) -> None:
    """The first stop skips the navigation, then come its links, then the button."""
    page = reports(DEMO).loaded.page
    stops = []
    for _ in range(len(EVERY) + 3):
        page.keyboard.press("Tab")
        stops.append(page.evaluate("() => document.activeElement.textContent"))
    assert stops[:3] == ["Skip to the verdict", "Verdict", "Where the time went"]
    assert stops[-1] == "light / dark"
    for theme in ("dark", "light"):
        page.keyboard.press("Enter")
        assert page.evaluate("() => document.documentElement.dataset.theme") == theme


def test_names_of_a_run_are_shown_as_text(visit: Go, tmp_path: Path) -> None:
    """One name has three megabytes: the page shows its ends, the JSON all of it."""
    plain = analysis()
    run = replace(plain.timeline.run, info=replace(plain.timeline.run.info, id=HOSTILE))
    faults = (
        Fault(kind=FaultKind.EXCEPTION, at_ns=run.info.started_wall_ns + 5, ranks=(0,), what=HOSTILE, evidence=HOSTILE),
        Fault(kind=FaultKind.EVENT, at_ns=run.info.started_wall_ns + 9, what="x" * 3_000_000),
    )
    result = replace(
        plain,
        context=Context(replace(plain.timeline, run=run)),
        comm=tuple(replace(row, axis=HOSTILE, operation=HOSTILE) for row in plain.comm),
        verdict=tuple(replace(row, evidence=HOSTILE, advice=HOSTILE) for row in plain.verdict),
        faults=faults,
    )
    url = written(tmp_path, result)
    loaded = drawn(visit(url))
    assert loaded.complaints == []
    assert loaded.requests == [url]
    assert loaded.page.evaluate("() => window.hacked") is None
    assert loaded.page.locator("img, main script[src]").count() == 0
    assert loaded.page.inner_text("h1") == HOSTILE
    assert loaded.page.locator("#communication td", has_text=HOSTILE).count() == 4
    assert loaded.page.locator("#faults td", has_text=HOSTILE).count() == 2
    assert all(done for _, done in loaded.page.evaluate(DRAWN))
    in_figure = loaded.page.locator("#happened, #icicle").locator("b, i, a").count()
    assert in_figure == 0
    assert "</script><script>" in "".join(loaded.page.locator("#icicle text").all_text_contents())
    assert loaded.page.evaluate("() => document.getElementById('document').textContent.length") > 3_000_000
    assert check_numbers(loaded, json.loads(to_json(to_document(result)))) > 40


def test_a_run_without_steps_says_so_without_empty_figures(visit: Go, tmp_path: Path) -> None:
    loaded = drawn(visit(written(tmp_path, without_steps())))
    assert loaded.complaints == []
    assert loaded.page.inner_text("#ledger .nothing") == "Unknown: no complete step was recorded."
    assert loaded.page.locator(".plot").count() == 0


def test_dark_mode_follows_system_and_button_and_print_is_light(visit: Go, tmp_path: Path) -> None:
    paper = "() => getComputedStyle(document.body).backgroundColor"
    ink = "() => document.querySelector('#waterfall .xtick text').style.fill"
    loaded = drawn(visit(written(tmp_path, analysis()), dark=True))
    page = loaded.page
    assert (page.evaluate(paper), page.evaluate(ink)) == ("rgb(13, 17, 23)", "rgb(154, 167, 180)")
    page.click("#theme")
    assert (page.evaluate(paper), page.evaluate(ink)) == ("rgb(255, 255, 255)", "rgb(89, 99, 110)")
    page.click("#theme")
    page.emulate_media(media="print")
    page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    assert not page.is_visible("nav")
    assert (page.evaluate(paper), page.evaluate(ink)) == ("rgb(255, 255, 255)", "rgb(89, 99, 110)")
    widths = page.evaluate("() => [...document.querySelectorAll('.plot .main-svg')].map((s) => s.clientWidth)")
    assert set(widths) == {680}
    assert loaded.complaints == []


def test_the_critical_path_is_drawn_and_its_terms_sum_to_the_step(reports: Callable[[Path], Report]) -> None:
    report = reports(DEMO)
    page, result = report.loaded.page, report.document["critical_path"]
    boxes = page.evaluate(
        "() => document.getElementById('path').data.filter(d => d.type == 'bar').map(d => d.x.length)"
    )
    assert sum(boxes) == len(result["segments"])
    terms = page.locator("#critical-path table").first.locator("tbody tr")
    assert terms.count() == len(result["terms"]) + 1
    assert terms.last.inner_text().split("\t")[:2] == ["step", "100.0 %"]
