"""The viewer in a real browser: every page of every run, its numbers, and what clicks and keys do."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser import awkward
from tests.browser.browser import Visit
from tests.browser.conftest import RUNS
from tests.viewer.reading import reread
from traincope.analysis import diff
from traincope.report.diff import diff_document
from traincope.report.forms import FORMS
from traincope.viewer.library import Library
from traincope.viewer.numbers import DIFF, PLAN, REPORT
from traincope.viewer.pages import PAGES
from traincope.viewer.planning import document, prediction, values
from traincope.viewer.view import View

SLUGS = [page.slug for page in PAGES]
DRAWN = "#timeline .js-plotly-plot .xtick text"
QUIET = 30_000
CUT_OFF = """() => [...document.querySelectorAll("body *")].filter((e) =>
  e.getBoundingClientRect().right > document.documentElement.clientWidth + 1 && !e.closest(".scroll, .js-plotly-plot")
).map((e) => e.outerHTML.slice(0, 120))"""
"""What reaches beyond the window, tables that scroll by themselves left out."""
WHOLE = """() => [...document.querySelectorAll(".dash-graph")].every((plot) => plot.querySelector(
  ".barlayer .point, .scatterlayer .trace, .hm image, .imagelayer image, .slice"
))"""
"""No plot of the page is empty."""
Go = Callable[..., Visit]


def shown(visit: Go, address: str, where: str, **options: Any) -> Visit:
    """The page, with what it has to say."""
    seen = visit(f"{address}{where}", **options)
    expect(seen.page.locator("main > *").first).to_be_visible(timeout=QUIET)
    return seen


def settled(page: Page) -> None:
    """The timeline is drawn."""
    page.wait_for_selector(DRAWN, timeout=QUIET)


def search(page: Page) -> str:
    return str(page.evaluate("window.location.search"))


def wait_for_search(page: Page, part: str) -> None:
    page.wait_for_function("part => window.location.search.includes(part)", arg=part, timeout=QUIET)


MISSING = {
    ("no-steps", "ledger"): "No complete step was recorded",
    ("no-steps", "communication"): "one rank, which communicates with nobody",
    ("no-steps", "pipeline"): "There is no pipeline in this run",
    ("no-steps", "critical-path"): "There is no critical path",
    ("no-steps", "compare"): "no step counts that all its ranks completed",
    ("imported", "ledger"): "made of kernel traces alone",
    ("imported", "ranks"): "No complete step was recorded",
    ("missing", "ranks"): "ranks 2, 3 left no records",
    ("missing", "pipeline"): "No step of a whole pipeline",
    ("missing", "timeline"): "ranks 2, 3 left no records",
}
"""(Run, page) -> what it says instead of an empty plot."""


@pytest.mark.parametrize("run", range(len(RUNS)), ids=RUNS)
def test_every_page_of_a_run_loads_without_a_complaint_and_its_numbers_are_the_reports(
    visit: Go, address: str, library: Library, run: int
) -> None:
    """Every other run at 1,920 pixels, the rest at 1,280."""
    seen = shown(visit, address, f"/{SLUGS[0]}?run={run}", width=1920 if run % 2 else 1280)
    told_by = documents(library, run)
    numbers = dict.fromkeys(told_by, 0)
    for slug in SLUGS:
        seen.page.click(f"#tab-{slug}")
        expect(seen.page.locator(f"#tab-{slug}.here")).to_be_visible(timeout=QUIET)
        expect(seen.page.locator(f"main[data-page={slug}] > *").first).to_be_visible(timeout=QUIET)
        for told in seen.page.eval_on_selector_all(
            "data", "all => all.map(o => ({...o.dataset, value: o.value, text: o.textContent}))"
        ):
            value = at(told_by[told["of"]], told["at"])
            assert (float(told["value"]), told["text"]) == (value, FORMS[told["as"]](value))
            numbers[told["of"]] += 1
        assert seen.page.evaluate(CUT_OFF) == [], slug
        expect(seen.page.locator("main")).to_contain_text(MISSING.get((RUNS[run], slug), ""), timeout=QUIET)
        if run in (RUNS.index("demo"), RUNS.index("crashed")):
            seen.page.wait_for_function(WHOLE, timeout=QUIET)
    assert numbers[REPORT] > (100 if run < 3 else 1)
    assert numbers[PLAN] >= 12
    assert (DIFF not in told_by) or numbers[DIFF] >= 20
    assert seen.complaints == []
    assert seen.went_to(besides=address) == []
    assert seen.page.evaluate("window.stolen") is None


def documents(library: Library, run: int) -> Mapping[str, Any]:
    """What the commands print of it; `diff` against the run that the page takes where none is asked for."""
    found: dict[str, Any] = {REPORT: library[run].document}
    chosen = values(View())
    found[PLAN] = document(chosen, prediction(chosen))
    own, other = (library[at].analysis for at in (run, 0 if run else 1))
    if own is not None and other is not None and own.ledger.rank_steps:
        found[DIFF] = diff_document(diff(other, own))
    return {name: json.loads(json.dumps(of)) for name, of in found.items()}


def at(document: Any, pointer: str) -> float:
    """RFC 6901."""
    for key in pointer.split("/")[1:]:
        name = key.replace("~1", "/").replace("~0", "~")
        document = document[int(name)] if isinstance(document, list) else document[name]
    return float(document)


def test_names_of_a_hostile_run_are_on_the_page_as_text(visit: Go, address: str) -> None:
    seen = shown(visit, address, f"/timeline?run={RUNS.index('hostile')}&q=script")
    expect(seen.page.locator("#found")).to_contain_text("<script>window.stolen = 1</script>")
    settled(seen.page)
    assert seen.page.locator("main script, main img, main a[href^=javascript]").count() == 0
    shown(visit, address, f"/faults?run={RUNS.index('hostile')}")
    assert seen.complaints == []


def test_kernels_of_an_imported_trace_are_on_the_timeline(visit: Go, address: str) -> None:
    seen = shown(visit, address, f"/timeline?run={RUNS.index('imported')}")
    settled(seen.page)
    expect(seen.page.locator("#legend")).to_contain_text("gpu communication")
    assert seen.page.locator("#timeline .barlayer .point").count() == 4


def test_a_drag_zooms_the_address_follows_and_back_is_the_whole_again(visit: Go, address: str) -> None:
    page = shown(visit, address, "/timeline?run=0").page
    settled(page)
    whole = page.inner_text("#caption")
    box = page.locator("#timeline .nsewdrag").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 50)
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 50)
    page.mouse.up()
    wait_for_search(page, "from=")
    found = re.search(r"from=(\d+)&to=(\d+)", search(page))
    assert found is not None
    begin, end = map(int, found.groups())
    length = 34.4e9
    assert begin == pytest.approx(0.4 * length, rel=0.05)
    assert end == pytest.approx(0.6 * length, rel=0.05)
    expect(page.locator("#caption")).not_to_have_text(whole, timeout=QUIET)
    page.go_back()
    expect(page.locator("#caption")).to_have_text(whole, timeout=QUIET)


def test_a_bar_tells_what_it_is_and_clicked_all_and_is_linked_to_the_other_ranks_parts(visit: Go, address: str) -> None:
    page = shown(visit, address, "/timeline?run=0&step=12&lanes=comm+fsdp").page
    settled(page)
    click_wide_bar(page)
    wait_for_search(page, "pick=")
    inspector = page.locator("#inspector")
    expect(inspector).to_contain_text("2 parts: rank", timeout=QUIET)
    expect(inspector).to_contain_text("waiting for other ranks")
    expect(page.locator("#timeline .scatterlayer .trace")).to_have_count(2, timeout=QUIET)
    link = search(page)
    again = shown(visit, address, f"/timeline{link}").page
    expect(again.locator("#inspector")).to_have_text(inspector.inner_text(), use_inner_text=True, timeout=QUIET)


def click_wide_bar(page: Page) -> None:
    """Pointed at, it says what it is."""
    bars = page.locator("#timeline .barlayer .point path")
    for number in range(bars.count()):
        box = bars.nth(number).bounding_box()
        if box is not None and box["width"] > 20:
            page.mouse.move(box["x"] + box["width"] / 2 - 1, box["y"] + box["height"] / 2)
            page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
            told = page.locator("#timeline .hoverlayer .hovertext")
            expect(told).to_contain_text(re.compile(r"where: rank \d, comm fsdp, step 12.*group: fsdp"), timeout=QUIET)
            page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
            return
    raise AssertionError("no bar is wide enough to be clicked")


def test_pointing_at_a_raster_tells_the_shares_of_the_pixel(visit: Go, address: str) -> None:
    page = shown(visit, address, "/timeline?run=0").page
    settled(page)
    box = page.locator("#timeline .nsewdrag").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 50)
    page.mouse.move(box["x"] + box["width"] / 2 + 2, box["y"] + 50)
    expect(page.locator("#reading")).to_contain_text(re.compile(r"rank 0, \w+: .* %"), timeout=QUIET)


def test_keys_move_zoom_search_and_go_back_to_the_whole(visit: Go, address: str) -> None:
    page = shown(visit, address, "/timeline?run=0&step=999").page
    expect(page.locator("#caption")).to_contain_text("; no step 999 was recorded", timeout=QUIET)
    page = shown(visit, address, "/timeline?run=0&from=1000000000&to=9000000000").page
    settled(page)
    page.keyboard.press("+")
    wait_for_search(page, "from=3000000000&to=7000000000")
    expect(page.locator("#caption")).to_contain_text("4.00 s", timeout=QUIET)
    page.keyboard.press("ArrowRight")
    wait_for_search(page, "from=4000000000&to=8000000000")
    page.keyboard.press("0")
    page.wait_for_function("!window.location.search.includes('from=')")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id").find('"q"') > 0
    page.evaluate("document.activeElement.blur()")
    for key, there in (("]", "pipeline"), ("[", "timeline"), ("[", "ledger")):
        page.keyboard.press(key)
        expect(page.locator(f"#tab-{there}.here")).to_be_visible(timeout=QUIET)


def test_a_step_is_jumped_to_and_the_field_knows_it_when_the_link_is_opened(visit: Go, address: str) -> None:
    page = shown(visit, address, "/timeline?run=0&from=5&to=500").page
    settled(page)
    field = page.locator("input[id*='\"step\"']")
    field.fill("12")
    field.press("Enter")
    wait_for_search(page, "step=12")
    assert "from=" not in search(page)
    expect(page.locator("#caption")).to_contain_text("bars", timeout=QUIET)
    again = shown(visit, address, f"/timeline{search(page)}").page
    expect(again.locator("input[id*='\"step\"']")).to_have_value("12")


def test_a_span_is_found_by_its_name_and_led_to(visit: Go, address: str) -> None:
    page = shown(visit, address, "/timeline?run=0&q=reduce_scatter").page
    settled(page)
    expect(page.locator("#found")).to_contain_text("spans named so, the first 12")
    page.locator("#found a").first.click()
    wait_for_search(page, "pick=")
    expect(page.locator("#inspector")).to_contain_text("reduce_scatter", timeout=QUIET)


def test_a_bar_of_the_waterfall_leads_to_the_steps_behind_it(visit: Go, address: str) -> None:
    page = shown(visit, address, "/ledger?run=0").page
    click_bar(page, "exposed_wait[fsdp]")
    expect(page.locator("h2", has_text="Most exposed wait[fsdp]")).to_be_visible(timeout=QUIET)
    page.locator("td a").first.click()
    expect(page.locator("#tab-timeline.here")).to_be_visible(timeout=QUIET)
    assert "step=" in search(page)
    assert "ranks=" in search(page)


def click_bar(page: Page, name: str) -> None:
    """Of the waterfall."""
    plot = "[id*='\"term\"'] .js-plotly-plot"
    page.wait_for_selector(f"{plot} .point path", timeout=QUIET)
    names = page.eval_on_selector(plot, "drawn => drawn.layout.yaxis.ticktext")
    page.locator(f"{plot} .point path").nth(names.index(name)).click(force=True)


@pytest.mark.parametrize("of", ["stage 1", pytest.param("rank 3", marks=pytest.mark.sweep)])
def test_the_waterfall_of_a_stage_or_a_rank_ends_at_its_mfu(visit: Go, address: str, of: str) -> None:
    page = shown(visit, address, f"/ledger?run=0&of={of.replace(' ', '+')}").page
    plot = "[id*='\"term\"'] .js-plotly-plot"
    page.wait_for_selector(f"{plot} .point path", timeout=QUIET)
    names = page.eval_on_selector(plot, "drawn => drawn.layout.yaxis.ticktext")
    assert (names[0], names[-1]) == ("peak", "MFU")


def test_a_cell_of_the_ranks_leads_to_the_step_and_rank_that_it_names(visit: Go, address: str) -> None:
    page = shown(visit, address, "/ranks?run=0").page
    plot = page.locator("[id*='\"cell\"'] .nsewdrag").first
    settled = "[id*='\"cell\"'] .js-plotly-plot:not(.dash-graph--pending) .hm image"
    page.wait_for_selector(settled, state="attached", timeout=QUIET)
    box = plot.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.6)
    page.locator("[id*='\"cell\"'] .hoverlayer text").first.wait_for(timeout=QUIET)
    told = page.locator("[id*='\"cell\"'] .hoverlayer tspan").first.text_content() or ""
    page.mouse.click(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.6)
    wait_for_search(page, "step=")
    expect(page.locator("#tab-timeline.here")).to_be_visible(timeout=QUIET)
    named = re.fullmatch(r"rank (\d+), step (\d+)", told)
    assert named is not None
    assert search(page) == f"?run=0&step={named[2]}&ranks={named[1]}"


def test_the_theme_is_the_systems_until_another_is_chosen_and_that_is_kept(visit: Go, address: str) -> None:
    page = shown(visit, address, "/verdict?run=0", dark=True).page
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.click("#light")
    page.wait_for_function("document.documentElement.dataset.theme === 'light'", timeout=QUIET)
    page.reload()
    page.wait_for_function("document.documentElement.dataset.theme === 'light'", timeout=QUIET)


def test_a_plan_that_cannot_be_says_why_and_one_that_can_has_numbers(visit: Go, address: str) -> None:
    page = shown(visit, address, "/plan?run=0&tp=7").page
    expect(page.locator("main")).to_contain_text("This cannot be: tp = 7 must divide", timeout=QUIET)
    field = page.locator("input[id*='\"tp\"']")
    field.fill("8")
    field.press("Enter")
    expect(page.locator(".tile").first).to_contain_text("64", timeout=QUIET)


def test_experts_of_a_plan_are_spread_as_its_fields_say(visit: Go, address: str) -> None:
    page = shown(visit, address, "/plan?run=0&preset=8x7B+on+64").page
    main = page.locator("main")
    expect(main.locator("td", has_text=re.compile("^ep$"))).to_be_visible(timeout=QUIET)
    field = page.locator("input[id*='\"ep\"']")
    field.fill("1")
    field.press("Enter")
    expect(main.locator("td", has_text=re.compile("^ep$"))).to_have_count(0, timeout=QUIET)
    page.locator("input[id*='\"experts\"']").fill("7")
    page.locator("input[id*='\"ep\"']").fill("8")
    page.locator("input[id*='\"ep\"']").press("Enter")
    expect(main).to_contain_text("This cannot be: ep = 8 must divide the 7 experts", timeout=QUIET)
    page.go_back()
    expect(page.locator("input[id*='\"ep\"']")).to_have_value("1", timeout=QUIET)
    expect(page.locator("input[id*='\"experts\"']")).to_have_value("7")


def test_a_run_that_grows_is_drawn_again_where_it_is_looked_at(visit: Go, address: str, library: Library) -> None:
    run = RUNS.index("no-steps")
    page = shown(visit, address, f"/timeline?run={run}&from=0&to=77").page
    settled(page)
    caption = page.inner_text("#caption")
    awkward.grow(library[run].path)
    reread(library)
    page.evaluate("window.dash_clientside.set_props('interval', { n_intervals: 1000 })")
    expect(page.locator("#caption")).not_to_have_text(caption, timeout=QUIET)
    assert "from=0&to=77" in search(page)
    expect(page.locator("#caption")).to_contain_text("77 ns")
