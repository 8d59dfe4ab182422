"""The plan page: its fields ask the command's question, its numbers are the command's, and searches run elsewhere."""

import json
import shlex
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from dash.development.base_component import Component

from tests.cli.plan.test_plan import outcome
from tests.viewer.library.reading import shelf
from traincope.errors import UsageError
from traincope.plan.search.question import Question
from traincope.report.sections.forms import FORMS
from traincope.report.sections.values import value_at
from traincope.viewer.app import make_app
from traincope.viewer.pages import plan
from traincope.viewer.pages.page import Asked
from traincope.viewer.planning.asked_question import OPTIONS, question, typed, usual_question
from traincope.viewer.planning.drawn_schedule import MAX_BOXES, drawn_schedule
from traincope.viewer.planning.searches import MAX_RUNNING, Outcome, Search, Searches, outcome_of
from traincope.viewer.view import View

DEMO = Path(__file__).parents[3] / "sample_runs" / "demo"
ADDRESS = "?model=llama3-8b&gpus=16&batch=64&tp=2&cp=1&micro_batch=1&price_per_gpu_hour=2.5"
PATIENCE_SECONDS = 120


class Here:
    """A search in the test's own process, which ends when it is allowed to."""

    begun: list["Here"]
    allowed = True
    looks = 0

    def __init__(self, asked: Search) -> None:
        self.asked, self.closed = asked, False
        Here.begun.append(self)

    @property
    def stage(self) -> str:
        return f"{Here.looks} layouts fit so far"

    def done(self) -> bool:
        Here.looks += 1
        return Here.allowed

    def result(self) -> Outcome:
        return outcome_of(self.asked)

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def _nothing_begun() -> None:
    Here.begun, Here.allowed, Here.looks = [], True, 0


def asked(tmp_path: Any, search: str = ADDRESS, *runs: Path) -> Asked:
    library = shelf(*runs, cache=tmp_path)
    return Asked(
        view=View.of("plan", search), opened=library[0], library=library, searches=Searches(Here), theme="light"
    )


def parts(shown: Any) -> list[Component]:
    """All components within these."""
    every: list[Component] = []
    for each in shown if isinstance(shown, list | tuple) else [shown]:
        if isinstance(each, Component):
            every += [each, *parts(getattr(each, "children", None) or [])]
    return every


@pytest.mark.parametrize("rates", ["", "&like=0"], ids=["of data sheets", "of a run"])
def test_every_number_of_the_page_is_a_number_of_its_command(
    tmp_path: Any, capsys: pytest.CaptureFixture[str], rates: str
) -> None:
    request = asked(tmp_path, ADDRESS + rates, DEMO)
    plan.explored(request)
    numbers = [each for each in parts(list(plan.explored(request))) if each._type == "Data"]
    first = parts(list(plan.render(request)))
    (command,) = [each.children for each in first if each._type == "Code" and "--zero" not in each.children][:1]
    assert ("--like" in command) is bool(rates)
    printed = json.loads(outcome(capsys, *shlex.split(command)[1:], "--format", "json"))
    assert len(numbers) > 100
    for number in numbers:
        properties = number.to_plotly_json()["props"]
        path = [int(key) if key.isdecimal() else key for key in properties["data-at"].split("/")[1:]]
        value = value_at(printed, tuple(path))
        assert value is not None, path
        assert (properties["value"], properties["children"]) == (repr(value), FORMS[properties["data-as"]](value))


def test_fields_of_zeropp_and_offload_are_options_of_the_command() -> None:
    asked = question(typed(View.of("plan", "?quantized=tried&offload=nvme")))
    assert (asked.quantized, asked.offload) == (True, "nvme")
    assert asked.command.endswith("--quantized --offload nvme")
    usual = question(typed(View.of("plan", "")))
    assert (usual.quantized, usual.offload) == (False, None)


def test_each_field_is_an_option_of_the_command() -> None:
    assert {option.name for option in OPTIONS} <= {each.name for each in fields(Question)}
    assert question(typed(View.of("plan", "?zero=1&tokens=1,000&pp=2"))) == Question(
        model="llama3-70b",
        seq=8192,
        batch=1024,
        gpu="h100",
        gpus=512,
        tokens=1000.0,
        pp=2,
        zero=1,
        price_per_gpu_hour=2.0,
    )


def test_the_usual_question_is_that_of_an_address_without_parameters(tmp_path: Any) -> None:
    plan.begin(asked(tmp_path, ""))
    assert [each.asked for each in Here.begun] == [Search(usual_question())]


@pytest.mark.parametrize(
    ("search", "sentence"),
    [
        ("?gpus=many", "GPUs = 'many' is not a whole number from 0 to 1e"),
        ("?gpus=1e400", "GPUs = '1e400' is not a whole number"),
        ("?tp=nan", "tp = 'nan' is not a whole number"),
        ("?gpu=h1000", "GPU = 'h1000' is not one of a100, h100"),
        ("?model=/etc/passwd", "model = '/etc/passwd' is not one of llama3-8b"),
        ("?gpus=0", "--gpus is 0; it must be greater than 0"),
    ],
)
def test_an_impossible_value_is_refused_in_one_sentence(tmp_path: Any, search: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence.replace("(", r"\(")):
        question(typed(View.of("plan", search)))
    (box,) = plan.explored(asked(tmp_path, search))
    assert str(box.children).startswith(f"No plan: {sentence}")
    assert Here.begun == []


def test_a_search_is_asked_for_until_it_ends(tmp_path: Any) -> None:
    request, Here.allowed = asked(tmp_path), False
    first, second = plan.state(request), plan.state(request)
    assert not plan.is_ended(second)
    assert first != second, "the page shows each new stage"
    assert "Searching all layouts: 2 layouts fit so far." in str(plan.explored(request)[0])
    Here.allowed = True
    assert plan.is_ended(plan.state(request))
    assert len(plan.explored(request)) > 5
    assert len(Here.begun) == 1


@pytest.mark.parametrize(("site", "begins"), [("none", True), ("same-origin", True), ("cross-site", False)])
def test_a_page_that_the_user_opens_begins_its_search_before_its_scripts_ask(
    tmp_path: Any, site: str, begins: bool
) -> None:
    client = make_app(shelf(cache=tmp_path), searches=Searches(Here)).server.test_client()
    client.get(f"/plan{ADDRESS}", headers={"Host": "localhost", "Sec-Fetch-Site": site})
    client.get("/plan?gpus=many", headers={"Host": "localhost", "Sec-Fetch-Site": site})
    wanted = Search(question(typed(View.of("plan", ADDRESS))))
    assert [each.asked for each in Here.begun] == [wanted] * begins


def different(number: int) -> list[Search]:
    """Questions of as many pages."""
    return [
        Search(Question(model="llama3-8b", seq=64, gpu="h100", gpus=gpus, batch=8)) for gpus in range(1, number + 1)
    ]


def test_a_further_search_ends_the_one_whose_page_has_moved_on() -> None:
    clock = iter(range(100))
    searches, Here.allowed = Searches(Here, now=lambda: float(next(clock))), False
    first, *others, last = different(MAX_RUNNING + 1)
    assert searches[first] is None
    polls = 0
    while len(Here.begun) <= MAX_RUNNING:
        polls += 1
        assert [searches[each] for each in (*others, last)] == [None] * MAX_RUNNING
    assert polls > 1
    assert [(each.asked, each.closed) for each in Here.begun] == [
        (first, True),
        *((each, False) for each in (*others, last)),
    ]


def test_all_pages_get_their_answers_although_more_are_open_than_searches_run() -> None:
    """No search is ended while its page asks: each is begun once, and the last page waits for a free place."""
    searches, Here.allowed = Searches(Here, now=lambda: 0.0), False
    pages = different(MAX_RUNNING + 1)
    for _ in range(3):
        assert [searches[each] for each in pages] == [None] * len(pages)
    assert [each.asked for each in Here.begun] == pages[:MAX_RUNNING]
    Here.allowed = True
    for _ in range(2):
        answers = [searches[each] for each in pages]
    assert None not in answers
    assert [each.asked for each in Here.begun] == pages
    assert not any(each.closed for each in Here.begun)


def test_a_child_process_answers_and_says_why_it_cannot() -> None:
    searches = Searches()
    small = Search(Question(model="llama3-8b", seq=64, gpu="h100", gpus=1, batch=1))
    impossible = Search(Question(model="missing.toml", gpu="h100", gpus=1, batch=1))
    given_up = time.monotonic() + PATIENCE_SECONDS
    while (searches[small] is None or searches[impossible] is None) and time.monotonic() < given_up:
        time.sleep(0.05)
    assert searches[small] == outcome_of(small)
    assert isinstance(searches[impossible], UsageError)


@pytest.mark.parametrize(("microbatches", "drawn"), [(8, 8), (512, MAX_BOXES // 24)])
def test_a_schedule_is_drawn_with_the_microbatches_that_fit(microbatches: int, drawn: int) -> None:
    """8 stages of 3 actions. 1F1B without communication: M (F + B) and 7 more of both, by each of 8 ranks."""
    ranked: Any = {
        "pp": 8,
        "virtual": 1,
        "schedule": "1f1b",
        "microbatches": microbatches,
        "bubble_ratio": 7 / (microbatches + 7),
        "step_seconds": (microbatches + 7) * 3e-3,
        "parts": {},
    }
    shown = drawn_schedule(ranked, layers=16)
    assert shown is not None
    assert shown.microbatches == drawn
    assert shown.timetable.span == (drawn + 7) * 3_000_000
