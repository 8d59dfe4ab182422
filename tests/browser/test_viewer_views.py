"""Interaction with the viewer's pages: comparing ranks, a crashed run, a growing run, a run of very many ranks."""

import re
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser import awkward
from tests.browser.browser import choose, drag
from tests.browser.conftest import RUNS, SAMPLES
from tests.browser.test_viewer import QUIET, WHOLE, Go, search, settled, shown, wait_for_search
from tests.summaries.test_summaries import RANKS, write_job
from tests.viewer.library.reading import go_on, prepare_step_by_step, reread
from traincope.summaries import reading
from traincope.viewer.library.analysis_process import Reading
from traincope.viewer.library.library import Library
from traincope.viewer.serving import bound

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
    expect(first).to_contain_text("rank 1 ended first: it raised RuntimeError", timeout=QUIET)


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


@pytest.fixture
def of_many_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, str]]:
    """A run whose number of ranks counts as very many, and the address of its viewer. Child processes read it."""
    monkeypatch.setattr(reading, "MANY_RANKS", RANKS)
    run = write_job(tmp_path / "run")
    begin = partial(Reading, work=prepare_step_by_step)
    library = Library([run], cache=tmp_path / "cache", begin=begin)
    server = bound(library, port=0)
    library.refresh()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield run, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    library.close()
    server.server_close()


@pytest.mark.sweep
def test_a_run_of_very_many_ranks_opens_from_rows_and_its_events_on_request(
    visit: Go, of_many_ranks: tuple[Path, str]
) -> None:
    """Rank 2 stands still and rank 1 is slow (`write_job`). The child process waits until the progress was seen."""
    run, address = of_many_ranks
    loaded = shown(visit, address, "/")
    page = loaded.page
    expect(page.locator("main")).to_contain_text("This stands on 356 rows of steps 0-89", timeout=QUIET)
    expect(page.locator(".finding h3")).to_have_text(["1. Stall", "2. Straggler"])
    expect(page.locator(".finding").first).to_contain_text("rank 2")
    expect(page.locator("header")).to_contain_text("rows until step 89; not all events are read")
    page.click("#tab-timeline")
    expect(page.locator("main")).to_contain_text("This page needs the events of all 4 ranks, which are not read yet.")
    page.click("#read-events")
    wait_for_search(page, "detail=all")
    expect(page.locator("main")).to_contain_text(
        "The events of all ranks are being read: reading the events. The pages open when they are ready.", timeout=QUIET
    )
    go_on(run).touch()
    settled(page)
    page.click("#tab-verdict")
    expect(page.locator(".finding").first).to_contain_text("rank 2", timeout=QUIET)
    expect(page.locator("main")).not_to_contain_text("This stands on")
    assert loaded.complaints == []
    assert loaded.went_to(besides=address) == []
