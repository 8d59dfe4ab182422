"""The plan page in a real browser, without any run: fields, chosen layouts, and an address that reproduces them."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.browser import Visit, choose
from tests.browser.test_viewer import CUT_OFF, WHOLE, search, searched
from tests.report.places import value_at
from traincope.report.sections.forms import FORMS
from traincope.viewer.library.library import Library
from traincope.viewer.serving import bound
from traincope.viewer.view import View

SMALL = "?model=llama3-8b&gpus=16&batch=64&cp=1&micro_batch=1"
PATIENCE_MS = 240_000
"""Time of a search in a child process, on a busy machine too."""
Go = Callable[..., Visit]


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[str]:
    """Address of a viewer of no run."""
    server = bound(Library([], cache=tmp_path), port=0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def numbers_of(page: Page, answer: object) -> int:
    """Numbers on the page; each is the answer's."""
    shown = page.eval_on_selector_all(
        "data", "all => all.map(o => ({...o.dataset, value: o.value, text: o.textContent}))"
    )
    for number in shown:
        value = value_at(answer, number["at"])
        assert (float(number["value"]), number["text"]) == (value, FORMS[number["as"]](value))
    return len(shown)


def fill(page: Page, name: str, value: str) -> None:
    field = page.locator(f"input[id*='\"{name}\"']")
    field.fill(value)
    field.press("Enter")


def test_layouts_are_searched_filtered_and_chosen(visit: Go, alone: str) -> None:
    loaded = visit(f"{alone}/plan{SMALL}", width=1400)
    page = loaded.page
    expect(page.locator("#tabs > a")).to_have_text(["Explained", "Plan"], timeout=PATIENCE_MS)
    expect(page.locator("tr:has(.chosen)")).to_have_count(1, timeout=PATIENCE_MS)
    assert numbers_of(page, searched(View.of("plan", SMALL))) > 100
    page.wait_for_function(WHOLE, timeout=PATIENCE_MS)
    assert page.evaluate(CUT_OFF) == []
    page.locator("tbody a").nth(1).click()
    expect(page.locator("tbody tr").nth(1).locator(".chosen")).to_have_count(1, timeout=PATIENCE_MS)
    assert "place=2" in search(page)
    choose(page, "schedule", "zb-1p")
    expect(page.locator("#plan-command code")).to_contain_text("--schedule zb-1p", timeout=PATIENCE_MS)
    asked = View.of("plan", f"{SMALL}&schedule=zb-1p")
    first = searched(asked)["ranked"][0]
    step = page.locator("data[data-at='/ranked/0/step_seconds']").first
    expect(step).to_have_attribute("value", repr(first["step_seconds"]), timeout=PATIENCE_MS)
    assert "place" not in search(page)
    assert numbers_of(page, searched(asked)) > 100
    assert loaded.complaints == []
    assert loaded.went_to(besides=alone) == []


def test_the_page_answers_while_a_large_search_runs(visit: Go, alone: str) -> None:
    """The fields react to an impossible value at once; the search of 16,384 GPUs goes on in its own process."""
    page = visit(f"{alone}/plan?model=llama3-405b&gpus=512&batch=2048&tp=8&pp=16&cp=1", width=1000, dark=True).page
    expect(page.locator("tr:has(.chosen)")).to_have_count(1, timeout=PATIENCE_MS)
    for name, value in {"gpus": "16384", "cp": "", "pp": ""}.items():
        fill(page, name, value)
    expect(page.locator("main")).to_contain_text("Searching all layouts: ", timeout=PATIENCE_MS)
    fill(page, "tp", "0")
    expect(page.locator("main")).to_contain_text("No plan: --tp is 0", timeout=PATIENCE_MS)
    assert page.evaluate(CUT_OFF) == []
