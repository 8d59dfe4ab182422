"""What pages of the viewer do when they are asked: of one rank against another, of a run that died, or that grows."""

import re

from playwright.sync_api import Page, expect

from tests.browser import awkward
from tests.browser.conftest import RUNS, SAMPLES
from tests.browser.test_viewer import QUIET, Go, search, settled, shown, wait_for_search
from tests.viewer.reading import reread
from traincope.viewer.library import Library

CRASHED = RUNS.index("crashed")
WHOLE = """() => {
  const plots = [...document.querySelectorAll(".dash-graph")];
  return plots.length > 0 && plots.every((plot) => plot.querySelector(
    ".barlayer .point, .scatterlayer .trace, .hm image, .imagelayer image, .slice"
  ));
}"""
"""There is a plot, and none is empty."""


def choose(page: Page, name: str, option: str | re.Pattern[str]) -> None:
    """In the dropdown of a parameter of the address."""
    page.click(f'button[id*=\'"name":"{name}"\']')
    page.get_by_role("option").filter(has_text=option).first.click()


def test_one_rank_against_another_is_chosen_is_in_the_address_and_opens_from_there(visit: Go, address: str) -> None:
    page = shown(visit, address, "/communication?run=0").page
    expect(page.locator("main")).to_contain_text("that needs level 2")
    choose(page, "of", "rank 1")
    wait_for_search(page, "of=1")
    choose(page, "against", "rank 2")
    wait_for_search(page, "against=2")
    again = shown(visit, address, f"/communication{search(page)}").page
    for seen in (page, again):
        expect(seen.locator("h2").first).to_contain_text("Rank 1 against rank 2", timeout=QUIET)
        expect(seen.locator(".slice", has_text="reduce_scatter").first).to_contain_text(re.compile("more|less"))


def test_of_a_run_that_died_every_page_has_its_plots_and_its_faults_are_jumped_to(visit: Go, address: str) -> None:
    seen = shown(visit, address, f"/verdict?run={CRASHED}", width=1920)
    page = seen.page
    expect(page.locator(".finding").first).to_contain_text(
        "rank 1 went first: it left the run by RuntimeError", timeout=QUIET
    )
    for slug in ("ledger", "pipeline", "communication", "critical-path", "ranks", "faults", "memory", "plan"):
        page.click(f"#tab-{slug}")
        expect(page.locator(f"main[data-page={slug}]")).to_be_visible(timeout=QUIET)
        page.wait_for_function(WHOLE, timeout=QUIET)
    page.click("#tab-timeline")
    settled(page)
    choose(page, "at", "exception rank 1")
    wait_for_search(page, "at=")
    expect(page.locator("#caption")).to_contain_text(re.compile("8 ranks, 6[0-9]{2} ms"), timeout=QUIET)
    assert seen.complaints == []


def test_a_bar_that_is_pointed_at_says_what_it_is(visit: Go, address: str) -> None:
    page = shown(visit, address, "/timeline?run=0&step=12&ranks=0&lanes=pipeline").page
    settled(page)
    box = page.locator("#timeline .barlayer .point path").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2 - 1, box["y"] + box["height"] / 2)
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    told = page.locator("#timeline .hoverlayer .hovertext")
    expect(told).to_contain_text("F0, forward", timeout=QUIET)
    expect(told).to_contain_text("where: rank 0, pipeline, step 12")
    expect(told).to_contain_text("pipeline: stage 0, microbatch 0")


def test_a_page_of_a_run_that_grows_stays_where_it_is_scrolled_and_zoomed_to(
    visit: Go, address: str, library: Library
) -> None:
    """Of a run that died the other half turns up; the zoom is on steps that were there."""
    page = shown(visit, address, f"/ledger?run={CRASHED}&of=rank+3").page
    page.wait_for_function(WHOLE, timeout=QUIET)
    steps = "document.querySelector('[id*=\"step\"] .js-plotly-plot')"
    page.evaluate(f"() => {steps}._context && window.Plotly.relayout({steps}, {{'xaxis.range': [2, 4]}})")
    page.evaluate("window.scrollTo(0, 420)")
    before = page.locator("main").inner_text()
    awkward.go_on(SAMPLES / "demo-3d", library[CRASHED].path)
    reread(library)
    page.evaluate("window.dash_clientside.set_props('interval', { n_intervals: 1000 })")
    page.wait_for_function("before => document.querySelector('main').innerText !== before", arg=before, timeout=QUIET)
    page.wait_for_function(WHOLE, timeout=QUIET)
    assert page.evaluate(f"{steps}.layout.xaxis.range") == [2, 4]
    assert page.evaluate("window.scrollY") == 420
    assert search(page) == f"?run={CRASHED}&of=rank+3"
