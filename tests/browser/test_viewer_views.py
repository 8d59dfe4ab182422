"""What pages of the viewer do when they are asked: of one rank against another, of a run that died, or that grows."""

import re

from playwright.sync_api import Page, expect

from tests.browser import awkward
from tests.browser.conftest import RUNS, SAMPLES
from tests.browser.test_viewer import QUIET, WHOLE, Go, search, settled, shown, wait_for_search
from tests.viewer.reading import reread
from traincope.viewer.library import Library

CRASHED = RUNS.index("crashed")


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


def test_of_a_run_that_died_the_first_is_named_and_its_end_is_jumped_to(visit: Go, address: str) -> None:
    """The window is 4 % of the 12.2 s."""
    page = shown(visit, address, f"/timeline?run={CRASHED}").page
    settled(page)
    choose(page, "at", "exception rank 1")
    wait_for_search(page, "at=")
    expect(page.locator("#caption")).to_contain_text("8 ranks, 487 ms", timeout=QUIET)
    page.click("#tab-verdict")
    first = page.locator(".finding").first
    expect(first).to_contain_text("rank 1 went first: it left the run by RuntimeError", timeout=QUIET)


def test_a_page_of_a_run_that_grows_stays_where_it_is_scrolled_and_zoomed_to(
    visit: Go, address: str, library: Library
) -> None:
    """Of a run that died the other half turns up; the zoom is on steps that were there."""
    page = shown(visit, address, f"/ledger?run={CRASHED}&of=rank+3").page
    page.wait_for_function(WHOLE, timeout=QUIET)
    plot = page.locator("[id*='\"step\"'] .nsewdrag").first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 60, steps=3)
    page.mouse.up()
    steps = "document.querySelector('[id*=\"step\"] .js-plotly-plot').layout.xaxis"
    page.wait_for_function(f"{steps}.autorange === false", timeout=QUIET)
    there = f"[{steps}.range, window.scrollY, window.location.search]"
    before, told = page.evaluate(there), page.locator("main").inner_text()
    assert before[1] > 0
    awkward.go_on(SAMPLES / "demo-3d", library[CRASHED].path)
    reread(library)
    page.evaluate("window.dash_clientside.set_props('interval', { n_intervals: 1000 })")
    page.wait_for_function("told => document.querySelector('main').innerText !== told", arg=told, timeout=QUIET)
    as_it_was = f"before => JSON.stringify({there}) === JSON.stringify(before)"
    page.wait_for_function(as_it_was, arg=before, timeout=QUIET)
