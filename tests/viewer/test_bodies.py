"""What no page of ours sends is refused in one sentence, and not logged. A defect of ours is logged."""

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from tests.live.recorded import record
from traincope.live.serve.page import make_page
from traincope.live.serve.so_far import Judge
from traincope.live.serve.watching import Watcher
from traincope.viewer import app as viewer_app
from traincope.viewer.app import LOOPBACK, make_app
from traincope.viewer.bodies import MAX_BYTES, UPDATE
from traincope.viewer.library.library import Library

HERE = {"Host": "localhost"}
LARGE = b" " * (MAX_BYTES + 1)
READ = {
    "output": "reading.children",
    "outputs": {"id": "reading", "property": "children"},
    "inputs": [{"id": "pointed", "property": "data", "value": {"x": 1.5, "y": 0.5}}],
    "state": [
        {"id": "location", "property": "pathname", "value": "/timeline"},
        {"id": "location", "property": "search", "value": ""},
    ],
    "changedPropIds": ["pointed.data"],
}


@pytest.fixture(scope="module")
def viewer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlaskClient]:
    library = Library([], cache=tmp_path_factory.mktemp("cache"))
    yield make_app(library).server.test_client()
    library.close()


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FlaskClient:
    record(tmp_path / "run", monkeypatch)
    run = tmp_path / "run"
    return make_page(Watcher(run, attempt=0), Judge(run), hosts=LOOPBACK).server.test_client()


def changed(**fields: object) -> bytes:
    return json.dumps({**READ, **fields}).encode()


def with_value(value: object) -> bytes:
    return changed(inputs=[{"id": "pointed", "property": "data", "value": value}])


BODIES: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"{",
    "no text": b"\xff\xfe\x00",
    "no object": b"[1, 2]",
    "a number": b"7",
    "deep": b'{"inputs":' + b"[" * 100_000,
    "no output": json.dumps({key: value for key, value in READ.items() if key != "output"}).encode(),
    "an output of no part": changed(output="no.such"),
    "an output that is a list": changed(output=["reading.children"]),
    "an output that only the browser makes": changed(output="theme.data"),
    "no inputs": changed(inputs=[]),
    "inputs of text": changed(inputs="pointed.data"),
    "inputs of numbers": changed(inputs=[1]),
    "another input": changed(inputs=[{"id": "theme", "property": "data", "value": "light"}]),
    "no state": changed(state=None),
    "other outputs": changed(outputs={"id": "page", "property": "children"}),
    "outputs of numbers": changed(outputs=[1]),
    "a change of another property": changed(changedPropIds=["x"]),
    "changes of numbers": changed(changedPropIds=[1]),
    "a value of another type": with_value(7),
    "a value without its keys": with_value({}),
    "a value with a text for a number": with_value({"x": "far", "y": 1}),
    "a pathname that is a list": changed(
        state=[{"id": "location", "property": "pathname", "value": ["/"]}, READ["state"][1]]
    ),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_body_of_no_page_is_refused(viewer: FlaskClient, body: bytes, caplog: pytest.LogCaptureFixture) -> None:
    answer = viewer.post(UPDATE, data=body, content_type="application/json", headers=HERE)
    assert answer.status_code == 400
    assert answer.text.startswith("400: ")
    assert answer.text.count("\n") == 1
    assert caplog.records == []


@pytest.mark.parametrize(
    ("send", "status"),
    [
        (lambda client: client.post(UPDATE, data=changed(), content_type="text/plain", headers=HERE), 415),
        (lambda client: client.post(UPDATE, data=LARGE, content_type="application/json", headers=HERE), 413),
        (lambda client: client.post("/", data=b"{", headers=HERE), 405),
        (lambda client: client.get("/_dash-component-suites/os/path.py", headers=HERE), 404),
        (lambda client: client.get("/_dash-component-suites/dash/../x", headers=HERE), 404),
        (lambda client: client.get("/assets/../app.py", headers=HERE), 404),
        (lambda client: client.get("/", headers={"Host": "evil.example"}), 403),
        (lambda client: client.post(UPDATE, data=changed(), content_type="application/json", headers=HERE), 200),
    ],
)  # fmt: skip
def test_other_requests_have_the_status_of_what_is_wrong(
    viewer: FlaskClient, send: Callable[[FlaskClient], Any], status: int, caplog: pytest.LogCaptureFixture
) -> None:
    answer = send(viewer)
    assert answer.status_code == status
    assert answer.text.count("\n") <= 1
    assert caplog.records == []


@pytest.mark.parametrize("value", ["light", None])
def test_the_live_page_refuses_foreign_bodies_too(live: FlaskClient, value: object) -> None:
    body = {
        "output": "page.children",
        "outputs": {"id": "page", "property": "children"},
        "inputs": [
            {"id": "interval", "property": "n_intervals", "value": 1},
            {"id": "theme", "property": "data", "value": value},
        ],
        "changedPropIds": [],
    }
    assert live.post(UPDATE, json=body, headers=HERE).status_code in (200, 204)
    body["inputs"][1]["value"] = [value]  # type: ignore[index]
    assert live.post(UPDATE, json=body, headers=HERE).status_code == 400
    assert live.post(UPDATE, data=b"[", content_type="application/json", headers=HERE).status_code == 400


def test_a_defect_is_logged(
    viewer: FlaskClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(viewer_app.View, "of", broken)
    with caplog.at_level(logging.ERROR):
        answer = viewer.post(UPDATE, data=changed(), content_type="application/json", headers=HERE)
    assert answer.status_code == 500
    assert "a defect" in caplog.text
