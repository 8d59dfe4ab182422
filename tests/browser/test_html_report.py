"""The one-file report in a real browser: quiet, asking for nothing, and saying what the JSON says."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

import traincope
from tests.browser.browser import Visit, open_page
from tests.report.example import analysis, without_steps
from tests.test_sample_runs import SAMPLES
from traincope.analysis import Fault, FaultKind
from traincope.report import to_document, to_json
from traincope.report.forms import FORMS
from traincope.report.html import to_html

Go = Callable[..., Visit]
DEMO = next(path for path in SAMPLES if path.name == "demo")
HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>../../etc/passwd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """An open one, and the JSON of its run."""

    seen: Visit
    url: str
    document: Any


NUMBERS = """() => [...document.querySelectorAll("data[data-at]")].map((n) => ({
  at: n.dataset.at.split(" "), per: n.dataset.per ?? null, as: n.dataset.as, value: n.value, text: n.textContent
}))"""
DRAWN = """() => [...document.querySelectorAll(".plot")].map((place) => [
  place.id, place.querySelectorAll("svg .trace, svg .hm, svg .trace.bars, svg .slice, svg image").length > 0
])"""
LAID_OUT = """() => [...document.querySelectorAll("main *")].filter((e) =>
  e.getBoundingClientRect().right > document.documentElement.clientWidth + 1 && !e.closest(".scroll, .plot")
).map((e) => e.outerHTML.slice(0, 80))"""


def written(folder: Path, found: traincope.Analysis) -> str:
    """The report's address."""
    page = folder / "report.html"
    page.write_text(to_html(found), encoding="utf-8")
    return page.as_uri()


def drawn(seen: Visit) -> Visit:
    """The page, its figures drawn."""
    seen.page.wait_for_selector("html[data-drawn=yes]", state="attached")
    return seen


def at(document: Any, pointer: str) -> float:
    """What an RFC 6901 pointer of the page leads to."""
    for key in pointer.split("/")[1:]:
        name = key.replace("%20", " ").replace("%25", "%").replace("~1", "/").replace("~0", "~")
        document = document[int(name)] if isinstance(document, list) else document[name]
    return float(document)


def check_numbers(seen: Visit, document: Any) -> int:
    """Every number on the page is the document's, and is written as its kind is; how many there are."""
    numbers = seen.page.evaluate(NUMBERS)
    for number in numbers:
        value = sum(at(document, pointer) for pointer in number["at"] if _known(document, pointer))
        value = value / at(document, number["per"]) if number["per"] else value
        assert float(number["value"]) == value, number
        assert number["text"] == FORMS[number["as"]](value), number
    return len(numbers)


def _known(document: Any, pointer: str) -> bool:
    try:
        at(document, pointer)
    except TypeError:
        return False
    return True


@pytest.fixture(scope="module")
def reports(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], Report]]:
    """Each sample run's report, opened once: what a test changes it puts back."""

    opened: list[Visit] = []

    @cache
    def report(sample: Path) -> Report:
        found = traincope.analyze(traincope.open_run(sample))
        url = written(tmp_path_factory.mktemp("report"), found)
        opened.append(seen := drawn(open_page(chromium, url)))
        return Report(seen=seen, url=url, document=json.loads(to_json(to_document(found))))

    yield report
    for seen in opened:
        seen.page.context.close()


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_every_sample_run_is_quiet_whole_and_equal_to_its_json(reports: Callable[[Path], Report], sample: Path) -> None:
    report = reports(sample)
    page = report.seen.page
    assert report.seen.complaints == []
    assert report.seen.requests == [report.url]
    assert json.loads(page.locator("#document").text_content() or "") == report.document
    assert check_numbers(report.seen, report.document) >= 60
    figures = page.evaluate(DRAWN)
    assert len(figures) >= 7
    assert [name for name, done in figures if not done] == []
    assert page.evaluate(LAID_OUT) == []


def test_the_bars_of_the_waterfall_are_the_jsons(reports: Callable[[Path], Report]) -> None:
    report = reports(DEMO)
    told = report.seen.page.evaluate("""() => { const place = document.getElementById("waterfall");
        return [place.layout.yaxis.ticktext, place.data[0].x] }""")
    bars = dict(zip(*told, strict=True))
    shares = report.document["utilization"]["waterfall"]
    assert bars["MFU"] == shares["ideal"]
    assert {term: bars[term] for term in bars if term not in ("peak", "MFU")} == {
        term: share for term, share in shares.items() if share and abs(share) >= 0.0005 and term != "ideal"
    }


def test_a_stage_or_a_rank_can_be_picked(reports: Callable[[Path], Report]) -> None:
    page = reports(DEMO).seen.page
    mfu = "() => document.getElementById('waterfall').data[0].x.at(-1)"
    whole = page.evaluate(mfu)
    page.select_option("select[data-place=waterfall]", label="stage 1")
    assert page.evaluate(mfu) != whole
    page.select_option("select[data-place=waterfall]", label="the whole job")
    assert page.evaluate(mfu) == whole
    assert reports(DEMO).seen.complaints == []


def test_every_figure_and_table_says_what_it_is(reports: Callable[[Path], Report]) -> None:
    page = reports(DEMO).seen.page
    for role in ("img", "region"):
        for one in page.locator(f"[role={role}]").all():
            assert len(one.get_attribute("aria-label") or "") > 5
    assert page.locator("h1").count() == 1
    assert page.locator("html").get_attribute("lang") == "en"


def test_it_is_used_by_keyboard(reports: Callable[[Path], Report]) -> None:
    """The first stop leads past the navigation, then come its links, then the button."""
    page = reports(DEMO).seen.page
    stops = []
    for _ in range(16):
        page.keyboard.press("Tab")
        stops.append(page.evaluate("() => document.activeElement.textContent"))
    assert stops[:3] == ["Skip to the verdict", "Verdict", "Where the time went"]
    assert stops[15] == "Light or dark"
    for theme in ("dark", "light"):
        page.keyboard.press("Enter")
        assert page.evaluate("() => document.documentElement.dataset.theme") == theme


def test_names_of_a_run_are_text_wherever_they_stand(visit: Go, tmp_path: Path) -> None:
    """Also one of three megabytes, of which the page shows the ends, and the JSON all."""
    plain = analysis()
    run = replace(plain.timeline.run, info=replace(plain.timeline.run.info, id=HOSTILE))
    faults = (
        Fault(kind=FaultKind.EXCEPTION, at_ns=run.info.started_wall_ns + 5, ranks=(0,), what=HOSTILE, evidence=HOSTILE),
        Fault(kind=FaultKind.EVENT, at_ns=run.info.started_wall_ns + 9, what="x" * 3_000_000),
    )
    found = replace(
        plain,
        timeline=replace(plain.timeline, run=run),
        comm=tuple(replace(one, axis=HOSTILE, operation=HOSTILE) for one in plain.comm),
        verdict=tuple(replace(one, evidence=HOSTILE, advice=HOSTILE) for one in plain.verdict),
        faults=faults,
    )
    url = written(tmp_path, found)
    seen = drawn(visit(url))
    assert seen.complaints == []
    assert seen.requests == [url]
    assert seen.page.evaluate("() => window.hacked") is None
    assert seen.page.locator("img, main script[src]").count() == 0
    assert seen.page.inner_text("h1") == HOSTILE
    assert seen.page.locator("#communication td", has_text=HOSTILE).count() == 4
    assert seen.page.locator("#faults td", has_text=HOSTILE).count() == 2
    assert all(done for _, done in seen.page.evaluate(DRAWN))
    in_figure = seen.page.locator("#happened, #icicle").locator("b, i, a").count()
    assert in_figure == 0
    assert "</script><script>" in "".join(seen.page.locator("#icicle text").all_text_contents())
    assert seen.page.evaluate("() => document.getElementById('document').textContent.length") > 3_000_000
    assert check_numbers(seen, json.loads(to_json(to_document(found)))) > 40


def test_a_run_without_steps_says_so_and_draws_nothing_empty(visit: Go, tmp_path: Path) -> None:
    seen = drawn(visit(written(tmp_path, without_steps())))
    assert seen.complaints == []
    assert seen.page.inner_text("#ledger .nothing") == "Unknown: no complete step was recorded."
    assert seen.page.locator(".plot").count() == 0


def test_dark_follows_the_system_and_the_button_and_paper_is_always_light(visit: Go, tmp_path: Path) -> None:
    paper = "() => getComputedStyle(document.body).backgroundColor"
    ink = "() => document.querySelector('#waterfall .xtick text').style.fill"
    seen = drawn(visit(written(tmp_path, analysis()), dark=True))
    page = seen.page
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
    assert seen.complaints == []


def test_the_critical_path_is_drawn_and_its_terms_make_the_whole_step(reports: Callable[[Path], Report]) -> None:
    report = reports(DEMO)
    page, found = report.seen.page, report.document["critical_path"]
    boxes = page.evaluate(
        "() => document.getElementById('path').data.filter(d => d.type == 'bar').map(d => d.x.length)"
    )
    assert sum(boxes) == len(found["segments"])
    terms = page.locator("#critical-path table").first.locator("tbody tr")
    assert terms.count() == len(found["terms"]) + 1
    assert terms.last.inner_text().split("\t")[:2] == ["step", "100.0 %"]
