"""The button that requests steps in detail: what it answers, and where it is missing."""

from pathlib import Path
from typing import Any

import pytest
from dash import Dash

from tests.live.recorded import record
from tests.store.job.test_requests import as_if_it_ran
from traincope.store.job.requests import Cause, read_requests
from traincope.viewer.app import LOOPBACK, make_app
from traincope.viewer.library.library import Library
from traincope.viewer.profiling import ANSWER, BUTTON


def click(app: Dash) -> Any:
    """The answer to a click, as a browser requests it."""
    asked = {
        "output": f"{ANSWER}.children",
        "outputs": {"id": ANSWER, "property": "children"},
        "inputs": [{"id": BUTTON, "property": "n_clicks", "value": 1}],
        "state": [{"id": "location", "property": "search", "value": ""}],
        "changedPropIds": [f"{BUTTON}.n_clicks"],
    }
    answer = app.server.test_client().post("/_dash-update-component", json=asked, headers={"Host": "localhost"})
    return answer.get_json()["response"][ANSWER]["children"]


def test_a_click_requests_a_window_of_the_shown_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    record(run, monkeypatch, steps=20)
    app = make_app(Library([run], cache=tmp_path / "cache"), hosts=LOOPBACK)
    assert "is not running: all its ranks have ended" in click(app)
    as_if_it_ran(run)
    answer = click(app)
    (request,) = read_requests(run, attempt=0)
    assert (request.cause, request.num_steps) == (Cause.VIEWER, 20)
    assert answer == f"All ranks record steps {request.first_step + 1} to {request.last_step} in detail."
    assert "a window is already requested" in click(app)


def test_a_page_that_other_machines_can_reach_has_no_button(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "run", monkeypatch)
    library = Library([tmp_path / "run"], cache=tmp_path / "cache")
    assert f"{ANSWER}.children" in make_app(library, hosts=LOOPBACK).callback_map
    assert f"{ANSWER}.children" not in make_app(library, hosts=()).callback_map
