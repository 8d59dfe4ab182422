"""Interaction with the viewer's pages: comparing ranks, a crashed run, a growing run."""

import re

from playwright.sync_api import expect

from tests.browser import awkward
from tests.browser.browser import choose, drag
from tests.browser.conftest import RUNS, SAMPLES
from tests.browser.test_viewer import QUIET, WHOLE, Go, search, settled, shown, wait_for_search
from tests.viewer.library.reading import reread
from traincope.viewer.library.library import Library

CRASHED = RUNS.index("crashed")


def test_comparing_two_ranks_is_stored_in_the_address(visit: Go, address: str) -> None:
    page = shown(visit, address, "/communication?run=0").page
    expect(page.locator("main")).to_contain_text("needs level 2")
    choose(page, "of", "rank 1")
    wait_for_search(page, "of=1")
    choose(page, "against", "rank 2")
    wait_for_search(page, "against=2")
    again = shown(visit, address, f"/communication{search(page)}").page
    for loaded in (page, again):
        expect(loaded.locator("h2").first).to_contain_text("Rank 1 compared with rank 2", timeout=QUIET)
        expect(loaded.locator(".slice", has_text="reduce_scatter").first).to_contain_text(re.compile("more|less"))


def test_a_crashed_run_names_the_first_failure_and_links_to_it(visit: Go, address: str) -> None:
    """The window is 4 % of the 12.2 s."""
    page = shown(visit, address, f"/timeline?run={CRASHED}").page
    settled(page)
    choose(page, "at", "exception rank 1")
    wait_for_search(page, "at=")
    expect(page.locator("#caption")).to_contain_text("8 ranks, 487 ms", timeout=QUIET)
    page.click("#tab-verdict")
    first = page.locator(".finding").first
    expect(first).to_contain_text("rank 1 ended first: it left the run by RuntimeError", timeout=QUIET)


def test_only_a_run_that_may_still_run_has_the_button_that_requests_steps(visit: Go, address: str) -> None:
    """The crashed run has ranks without a recorded end, from another host and days ago."""
    button = "button:has-text('record 20 steps in detail')"
    over = shown(visit, address, "/verdict?run=0").page
    expect(over.locator(button)).to_be_hidden(timeout=QUIET)
    page = shown(visit, address, f"/verdict?run={CRASHED}").page
    expect(page.locator(button)).to_be_visible(timeout=QUIET)
    page.click(button)
    expect(page.locator("#profile-answer")).to_contain_text("is known to run: the latest step", timeout=QUIET)


def test_a_page_of_a_growing_run_keeps_scroll_and_zoom(visit: Go, address: str, library: Library) -> None:
    """The other half of a crashed run appears; the zoom is on steps that existed before."""
    page = shown(visit, address, f"/ledger?run={CRASHED}&of=rank+3").page
    page.wait_for_function(WHOLE, timeout=QUIET)
    plot = page.locator("[id*='\"step\"'] .nsewdrag").first
    plot.scroll_into_view_if_needed()
    steps = "document.querySelector('[id*=\"step\"] .js-plotly-plot').layout.xaxis"
    drag(plot, 0.3, 0.6, until=f"{steps}.autorange === false")
    state = f"[{steps}.range, window.scrollY, window.location.search]"
    before, text = page.evaluate(state), page.locator("main").inner_text()
    assert before[1] > 0
    awkward.go_on(SAMPLES / "demo-3d", library[CRASHED].path)
    reread(library)
    page.evaluate("window.dash_clientside.set_props('interval', { n_intervals: 1000 })")
    page.wait_for_function("before => document.querySelector('main').innerText !== before", arg=text, timeout=QUIET)
    as_it_was = f"before => JSON.stringify({state}) === JSON.stringify(before)"
    page.wait_for_function(as_it_was, arg=before, timeout=QUIET)
