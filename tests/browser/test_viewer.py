"""The viewer in a real browser: every page of every run, its numbers, and the effect of clicks and keys."""

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest
from playwright.sync_api import Page, Request, Route, expect

from tests.browser import awkward
from tests.browser.browser import Visit, drag
from tests.browser.conftest import RUNS
from tests.report.places import value_at
from tests.viewer.library.reading import reread
from traincope.analysis import diff
from traincope.plan.search.question import Question
from traincope.report.sections.forms import FORMS
from traincope.report.text.diff import diff_document
from traincope.viewer.library.library import Library
from traincope.viewer.numbers import DIFF, PLAN, REPORT, SEARCH
from traincope.viewer.pages import PAGES
from traincope.viewer.planning.asked_question import question, typed
from traincope.viewer.planning.one_layout import document, prediction, values
from traincope.viewer.planning.searches import Search, outcome_of
from traincope.viewer.view import View

USUAL = ("demo", "missing")
"""Runs whose every page `make test` opens. Pages of `demo-3d` and `format-1` show nothing beyond those of `demo`."""
SLUGS = [page.slug for page in PAGES]
DRAWN = "#timeline .js-plotly-plot .xtick text"
QUIET, HANDLED = 90_000, 500
"""Milliseconds: at most until a page shows something, and those given to a page to handle an answer."""
CUT_OFF = """() => [...document.querySelectorAll("body *")].filter((e) =>
  e.getBoundingClientRect().right > document.documentElement.clientWidth + 1 && !e.closest(".scroll, .js-plotly-plot")
).map((e) => e.outerHTML.slice(0, 120))"""
"""Elements outside the window, except in tables that scroll."""
NARROW = """() => [...document.querySelectorAll("td")].filter((e) => e.innerText &&
  e.getBoundingClientRect().width < 5 * Math.min(e.innerText.length, 9)
).concat([...document.querySelectorAll(".js-plotly-plot .barlayer text")].filter((e) =>
  e.getBoundingClientRect().right > document.documentElement.clientWidth)).map((e) => e.textContent)"""
"""On a telephone: cells of few letters a line, and shares that leave the window."""
WHOLE = """() => [...document.querySelectorAll(".dash-graph")].every((plot) => plot.querySelector(
  ".barlayer .point, .scatterlayer .trace, .hm image, .imagelayer image, .slice"
))"""
"""True if every plot of the page has content."""
Go = Callable[..., Visit]


def shown(visit: Go, address: str, where: str, **options: Any) -> Visit:
    """Open a page and wait for its content."""
    loaded = visit(f"{address}{where}", **options)
    expect(loaded.page.locator("main > *").first).to_be_visible(timeout=QUIET)
    return loaded


def settled(page: Page) -> None:
    """Wait until the timeline is drawn."""
    page.wait_for_selector(DRAWN, timeout=QUIET)


def search(page: Page) -> str:
    return str(page.evaluate("window.location.search"))


def wait_for_search(page: Page, part: str) -> None:
    page.wait_for_function("part => window.location.search.includes(part)", arg=part, timeout=QUIET)


MISSING = {
    ("no-steps", "ledger"): "Unknown: no complete step was recorded",
    ("no-steps", "communication"): "The run has one rank",
    ("no-steps", "pipeline"): "This run has no pipeline",
    ("no-steps", "critical-path"): "Unknown: no step was completed by all ranks",
    ("no-steps", "compare"): "no counted step that all its ranks completed",
    ("imported", "ledger"): "imported kernel traces have no marks of steps",
    ("imported", "ranks"): "No complete step was recorded",
    ("missing", "ranks"): "o records from ranks 2, 3",
    ("missing", "pipeline"): "No step of the whole pipeline",
    ("missing", "timeline"): "o records from ranks 2, 3",
}
"""(Run, page) -> text instead of an empty plot."""


@pytest.mark.parametrize(
    "run",
    [pytest.param(n, id=name, marks=[pytest.mark.sweep] * (name not in USUAL)) for n, name in enumerate(RUNS)],
)
def test_every_page_loads_without_complaints_and_shows_the_reports_numbers(
    visit: Go, address: str, library: Library, run: int
) -> None:
    """Every second run at 1,920 pixels, the others at 1,280."""
    loaded = shown(visit, address, f"/{SLUGS[0]}?run={run}", width=1920 if run % 2 else 1280)
    document_of = documents(library, run)
    numbers = dict.fromkeys(document_of, 0)
    for slug in SLUGS:
        loaded.page.click(f"#tab-{slug}, #page-{slug}")
        expect(loaded.page.locator(f"#tab-{slug}.here, #page-{slug}.here").first).to_be_visible(timeout=QUIET)
        expect(loaded.page.locator(f"main[data-page={slug}] > *").first).to_be_visible(timeout=QUIET)
        for number in loaded.page.eval_on_selector_all(
            "data", "all => all.map(o => ({...o.dataset, value: o.value, text: o.textContent}))"
        ):
            value = value_at(document_of[number["of"]], number["at"], number.get("per"))
            assert (float(number["value"]), number["text"]) == (value, FORMS[number["as"]](value))
            numbers[number["of"]] += 1
        assert loaded.page.evaluate(CUT_OFF) == [], slug
        expect(loaded.page.locator("main")).to_contain_text(MISSING.get((RUNS[run], slug), ""), timeout=QUIET)
        if run in (RUNS.index("demo"), RUNS.index("crashed")):
            loaded.page.wait_for_function(WHOLE, timeout=QUIET)
    assert numbers[REPORT] > (100 if run < 3 else 1)
    assert numbers[PLAN] >= 10
    assert (DIFF not in document_of) or numbers[DIFF] >= 20
    assert loaded.complaints == []
    if run == RUNS.index("demo"):
        on_a_telephone(loaded.page, f"{address}/ledger?run={run}")  # to leave a page ends its requests
    assert loaded.went_to(besides=address) == []
    assert loaded.page.evaluate("window.stolen") is None


def on_a_telephone(page: Page, address: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(address)
    for slug in ("ledger", "communication", "memory", "plan", "compare"):
        page.click(f"#tab-{slug}, #page-{slug}")
        expect(page.locator(f"main[data-page={slug}] > *").first).to_be_visible(timeout=QUIET)
        page.wait_for_function(WHOLE, timeout=QUIET)
        assert (page.evaluate(CUT_OFF), page.evaluate(NARROW)) == ([], []), slug


def documents(library: Library, run: int) -> Mapping[str, Any]:
    """Output of the commands for the run; `diff` against the page's default run."""
    result: dict[str, Any] = {REPORT: library[run].document}
    chosen = values(View())
    result[PLAN] = document(chosen, prediction(chosen))
    result[SEARCH] = searched(View())
    current, other = (library[at].analysis for at in (run, 0 if run else 1))
    if current is not None and other is not None and current.ledger.rank_steps:
        result[DIFF] = diff_document(diff(other, current))
    return {name: json.loads(json.dumps(of)) for name, of in result.items()}


@cache
def _searched(asked: Question) -> Any:
    return outcome_of(Search(asked))


def searched(view: View) -> Any:
    """Output of `plan search` for the plan page of an address."""
    return _searched(question(typed(view)))


def test_names_of_a_hostile_run_are_shown_as_text(visit: Go, address: str) -> None:
    loaded = shown(visit, address, f"/timeline?run={RUNS.index('hostile')}&q=script")
    expect(loaded.page.locator("#found")).to_contain_text("<script>window.stolen = 1</script>")
    settled(loaded.page)
    assert loaded.page.locator("main script, main img, main a[href^=javascript]").count() == 0
    shown(visit, address, f"/faults?run={RUNS.index('hostile')}")
    assert loaded.complaints == []


def test_kernels_of_an_imported_trace_are_on_the_timeline(visit: Go, address: str) -> None:
    loaded = shown(visit, address, f"/timeline?run={RUNS.index('imported')}")
    settled(loaded.page)
    expect(loaded.page.locator("#legend")).to_contain_text("gpu communication")
    assert loaded.page.locator("#timeline .barlayer .point").count() == 4


def test_dragging_sums_by_term_what_f_then_shows_and_back_returns_to_the_whole_run(visit: Go, address: str) -> None:
    page = shown(visit, address, "/timeline?run=0").page
    settled(page)
    whole = page.inner_text("#caption")
    drag(page.locator("#timeline .nsewdrag").first, 0.4, 0.6, until="window.location.search.includes('selected=')")
    result = re.search(r"selected=(\d+)-(\d+)", search(page))
    assert result is not None
    begin, end = map(int, result.groups())
    length = 34.4e9
    assert begin == pytest.approx(0.4 * length, rel=0.05)
    assert end == pytest.approx(0.6 * length, rel=0.05)
    inspector = page.locator("#inspector")
    expect(inspector).to_contain_text("mean over 4 ranks", timeout=QUIET)
    shares = [float(text.strip("<% ")) for text in inspector.locator("td:last-child").all_inner_texts()]
    assert sum(shares) == pytest.approx(100, abs=0.1 * len(shares))
    plot, beside = page.locator("#pane").bounding_box(), inspector.bounding_box()
    assert plot is not None
    assert beside is not None
    assert beside["x"] >= plot["x"] + plot["width"]
    page.keyboard.press("f")
    wait_for_search(page, "from=")
    expect(page.locator("#caption")).not_to_have_text(whole, timeout=QUIET)
    page.go_back()
    expect(page.locator("#caption")).to_have_text(whole, timeout=QUIET)


def test_the_wheel_scrolls_below_the_axis_and_zooms_with_ctrl(visit: Go, address: str) -> None:
    page = shown(visit, address, f"/timeline?run={RUNS.index('demo-3d')}").page
    settled(page)
    pane = page.locator("#pane").bounding_box()
    assert pane is not None
    assert pane["y"] + pane["height"] <= 800
    page.mouse.move(600, 500)
    page.mouse.wheel(0, 300)
    page.wait_for_function("document.querySelector('#pane').scrollTop > 200")
    expect(page.locator("#ruler b")).to_have_text(re.compile(r"rank [1-7]"), timeout=QUIET)
    expect(page.locator("#ruler")).to_contain_text("2 s")
    ruler = page.locator("#ruler").bounding_box()
    assert ruler is not None
    assert ruler["y"] == pytest.approx(pane["y"], abs=2)
    assert "from=" not in search(page)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -200)
    page.keyboard.up("Control")
    wait_for_search(page, "from=")


def test_a_clicked_bar_shows_details_and_links_to_other_ranks(visit: Go, address: str) -> None:
    page = shown(visit, address, "/timeline?run=0&step=12&lanes=comm+fsdp").page
    settled(page)
    click_wide_bar(page)
    wait_for_search(page, "pick=")
    inspector = page.locator("#inspector")
    expect(inspector).to_contain_text("2 parts: rank", timeout=QUIET)
    expect(inspector).to_contain_text("for other ranks")
    expect(page.locator("#timeline .scatterlayer .trace")).to_have_count(2, timeout=QUIET)
    link = search(page)
    again = shown(visit, address, f"/timeline{link}").page
    expect(again.locator("#inspector")).to_have_text(inspector.inner_text(), use_inner_text=True, timeout=QUIET)
    page.keyboard.press("m")
    wait_for_search(page, "selected=")
    expect(inspector.locator("h3").first).to_have_text(re.compile(r"Selected: .*, mean over 4 ranks"), timeout=QUIET)


def click_wide_bar(page: Page) -> None:
    """Point at a wide bar, check its hover text and click it."""
    bars = page.locator("#timeline .barlayer .point path")
    for number in range(bars.count()):
        box = bars.nth(number).bounding_box()
        if box is not None and box["width"] > 20:
            page.mouse.move(box["x"] + box["width"] / 2 - 1, box["y"] + box["height"] / 2)
            page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
            hover = page.locator("#timeline .hoverlayer .hovertext")
            expect(hover).to_contain_text(
                re.compile(r"location: rank \d, comm fsdp, step 12.*group: fsdp"), timeout=QUIET
            )
            page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
            return
    raise AssertionError("no bar is wide enough to be clicked")


def test_pointing_at_a_raster_shows_the_shares_of_the_pixel(visit: Go, address: str) -> None:
    page = shown(visit, address, "/timeline?run=0").page
    settled(page)
    box = page.locator("#timeline .nsewdrag").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 50)
    page.mouse.move(box["x"] + box["width"] / 2 + 2, box["y"] + 50)
    expect(page.locator("#reading")).to_contain_text(re.compile(r"rank 0, \w+: .* %"), timeout=QUIET)


def test_keys_move_zoom_search_and_reset(visit: Go, address: str) -> None:
    page = shown(visit, address, "/timeline?run=0&step=999").page
    expect(page.locator("#caption")).to_contain_text("; step 999 was not recorded", timeout=QUIET)
    page = shown(visit, address, "/timeline?run=0&from=1000000000&to=9000000000").page
    settled(page)
    page.keyboard.press("+")
    wait_for_search(page, "from=3000000000&to=7000000000")
    expect(page.locator("#caption")).to_contain_text("4.00 s", timeout=QUIET)
    page.keyboard.press("ArrowRight")
    wait_for_search(page, "from=4000000000&to=8000000000")
    for key, stretch in (("a", (3, 7)), ("w", (4, 6)), ("d", (4.5, 6.5)), ("s", (3.5, 7.5))):
        settled(page)
        page.keyboard.press(key)
        wait_for_search(page, "from={:.0f}&to={:.0f}".format(*(1e9 * each for each in stretch)))
    page.keyboard.press("0")
    page.wait_for_function("!window.location.search.includes('from=')")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id").find('"q"') > 0
    page.evaluate("document.activeElement.blur()")
    for key, destination in (("]", "tab-ranks"), ("[", "tab-timeline"), ("[", "page-critical-path")):
        page.keyboard.press(key)
        expect(page.locator(f"#{destination}.here")).to_be_visible(timeout=QUIET)


def test_jumping_to_a_step_fills_the_field_and_the_address(visit: Go, address: str) -> None:
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


def test_search_finds_a_span_and_links_to_it(visit: Go, address: str) -> None:
    page = shown(visit, address, "/timeline?run=0&q=reduce_scatter").page
    settled(page)
    expect(page.locator("#found")).to_contain_text("matching spans, the first 12")
    page.locator("#found a").first.click()
    wait_for_search(page, "pick=")
    expect(page.locator("#inspector")).to_contain_text("reduce_scatter", timeout=QUIET)


def test_a_bar_of_the_waterfall_links_to_its_steps(visit: Go, address: str) -> None:
    page = shown(visit, address, "/ledger?run=0").page
    click_bar(page, "exposed_wait[fsdp]")
    expect(page.locator("h2", has_text="Steps with the most exposed_wait[fsdp]")).to_be_visible(timeout=QUIET)
    page.locator("td a").first.click()
    expect(page.locator("#tab-timeline.here")).to_be_visible(timeout=QUIET)
    assert "step=" in search(page)
    assert "ranks=" in search(page)


def click_bar(page: Page, name: str) -> None:
    """Click a bar of the waterfall."""
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


def test_a_cell_of_the_ranks_links_to_its_step_and_rank(visit: Go, address: str) -> None:
    page = shown(visit, address, "/ranks?run=0").page
    plot = page.locator("[id*='\"cell\"'] .nsewdrag").first
    settled = "[id*='\"cell\"'] .js-plotly-plot:not(.dash-graph--pending) .hm image"
    page.wait_for_selector(settled, state="attached", timeout=QUIET)
    box = plot.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.6)
    page.locator("[id*='\"cell\"'] .hoverlayer text").first.wait_for(timeout=QUIET)
    hover = page.locator("[id*='\"cell\"'] .hoverlayer tspan").first.text_content() or ""
    page.mouse.click(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.6)
    wait_for_search(page, "step=")
    expect(page.locator("#tab-timeline.here")).to_be_visible(timeout=QUIET)
    named = re.fullmatch(r"rank (\d+), step (\d+)", hover)
    assert named is not None
    assert search(page) == f"?run=0&step={named[2]}&ranks={named[1]}"


def test_the_theme_follows_the_system_until_the_user_chooses_one(visit: Go, address: str) -> None:
    page = shown(visit, address, "/verdict?run=0", dark=True).page
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.click("#light")
    page.wait_for_function("document.documentElement.dataset.theme === 'light'", timeout=QUIET)
    page.reload()
    page.wait_for_function("document.documentElement.dataset.theme === 'light'", timeout=QUIET)


@pytest.mark.sweep
def test_an_impossible_plan_says_why_and_a_possible_one_has_numbers(visit: Go, address: str) -> None:
    page = shown(visit, address, "/layout?run=0&tp=7").page
    expect(page.locator("main")).to_contain_text("No plan: tp is 7; it must divide", timeout=QUIET)
    field = page.locator("input[id*='\"tp\"']")
    field.fill("8")
    field.press("Enter")
    expect(page.locator(".tile").first).to_contain_text("64", timeout=QUIET)


@pytest.mark.sweep
def test_experts_of_a_plan_are_spread_as_its_fields_say(visit: Go, address: str) -> None:
    page = shown(visit, address, "/layout?run=0&preset=8x7B+on+64").page
    main = page.locator("main")
    expect(main.locator("td", has_text=re.compile("^ep$"))).to_be_visible(timeout=QUIET)
    field = page.locator("input[id*='\"ep\"']")
    field.fill("1")
    field.press("Enter")
    expect(main.locator("td", has_text=re.compile("^ep$"))).to_have_count(0, timeout=QUIET)
    page.locator("input[id*='\"experts\"']").fill("7")
    page.locator("input[id*='\"ep\"']").fill("8")
    page.locator("input[id*='\"ep\"']").press("Enter")
    expect(main).to_contain_text("No plan: ep is 8; it must divide the 7 experts", timeout=QUIET)
    page.go_back()
    expect(page.locator("input[id*='\"ep\"']")).to_have_value("1", timeout=QUIET)
    expect(page.locator("input[id*='\"experts\"']")).to_have_value("7")


def test_an_answer_that_a_later_one_overtook_changes_nothing(visit: Go, address: str) -> None:
    """The answer to 7 experts is held until the answer to `ep` is there."""
    page, held = shown(visit, address, "/layout?run=0&preset=8x7B+on+64&ep=1").page, list[Route]()

    def asks_first(request: Request) -> bool:
        return "ep=1&experts=7" in (request.post_data or "")

    def enter(name: str, text: str) -> None:
        field = page.locator(f"input[id*='\"{name}\"']")
        field.fill(text)
        field.press("Enter")

    def hold(route: Route) -> None:
        if asks_first(route.request):
            held.append(route)
        else:
            route.continue_()

    page.route("**/_dash-update-component*", hold)
    with page.expect_request(asks_first):  # otherwise the page may ask once for both
        enter("experts", "7")
    enter("ep", "8")
    main = page.locator("main")
    expect(main).to_contain_text("No plan: ep is 8; it must divide the 7 experts", timeout=QUIET)
    (overtaken,) = held
    with page.expect_response(lambda response: response.request == overtaken.request):
        overtaken.continue_()
    page.wait_for_timeout(HANDLED)
    expect(main).to_contain_text("No plan: ep is 8; it must divide the 7 experts")


def test_a_growing_run_is_drawn_again_in_the_same_window(visit: Go, address: str, library: Library) -> None:
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
