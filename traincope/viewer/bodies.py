"""Requests that no page of ours sends: refused with a status from 400 on and one sentence, and not logged.

Dash itself reads bodies without a check. An error behind this check is a defect of ours. It has status 500, and its
traceback is logged.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import signature
from typing import Any, NoReturn, ParamSpec, TypeVar, get_type_hints

import dash
import msgspec
from dash.exceptions import DependencyException
from flask import Response, abort, request
from werkzeug.exceptions import HTTPException

P = ParamSpec("P")
R = TypeVar("R")

MAX_BYTES = 1 << 20
"""The pages send some hundred bytes."""
UPDATE = "/_dash-update-component"
PATTERN = "{"
"""First character of an id that stands for several components."""


class _Property(msgspec.Struct):
    id: str | dict[str, Any]
    part: str = msgspec.field(name="property")
    value: Any = None

    @property
    def name(self) -> str:
        text = self.id if isinstance(self.id, str) else json.dumps(self.id, sort_keys=True, separators=(",", ":"))
        return f"{text}.{self.part}"


class _Body(msgspec.Struct):
    output: str
    outputs: _Property | list[_Property]
    inputs: list[_Property | list[_Property]]
    state: list[_Property | list[_Property]] = []
    changedPropIds: list[str] = []  # noqa: N815 - Dash's name


def refuse_foreign_bodies(app: dash.Dash) -> None:
    """Check each request of this app before Dash reads it."""
    server = app.server
    server.config["MAX_CONTENT_LENGTH"] = MAX_BYTES

    def check() -> None:
        if request.method == "POST" and request.path == UPDATE:
            _check_body(app.callback_map)

    server.before_request(check)
    server.register_error_handler(HTTPException, _one_sentence)
    server.register_error_handler(DependencyException, lambda _error: ("404: no such file\n", 404))


def checked(callback: Callable[P, R]) -> Callable[P, R]:
    """The callback, which refuses values that its annotations do not allow."""
    hints = get_type_hints(callback)
    kinds = [hints[name] for name in signature(callback).parameters]

    @wraps(callback)
    def answer(*values: P.args, **named: P.kwargs) -> R:
        try:
            converted = [msgspec.convert(value, kind) for value, kind in zip(values, kinds, strict=True)]
        except msgspec.ValidationError as error:
            _refuse(f"a value is wrong: {error}")
        return callback(*converted, **named)

    return answer


def _check_body(callbacks: Mapping[str, Mapping[str, Any]]) -> None:
    if not request.is_json:
        abort(415, "the content type must be application/json")
    try:
        body = msgspec.json.decode(request.get_data(), type=_Body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        _refuse(f"the body is not a request of a page: {error}")
    callback = callbacks.get(body.output)
    if callback is None or "callback" not in callback:
        _refuse("no part of the page has this output")
    given = [*body.inputs, *body.state]
    expected = [*callback["inputs"], *callback["state"]]
    if len(body.inputs) != len(callback["inputs"]) or not _have(given, expected):
        _refuse("the inputs are not those of this output")
    if _output_of(body.outputs) != body.output:
        _refuse("the outputs are not those of this output")
    names = {each.name for one in given for each in (one if isinstance(one, list) else [one])}
    if not names.issuperset(body.changedPropIds):
        _refuse("what has changed is not among the inputs")


def _have(given: Sequence[_Property | list[_Property]], expected: Sequence[Mapping[str, str]]) -> bool:
    return len(given) == len(expected) and all(map(_is, given, expected))


def _is(given: _Property | list[_Property], expected: Mapping[str, str]) -> bool:
    if not expected["id"].startswith(PATTERN):
        return isinstance(given, _Property) and (given.id, given.part) == (expected["id"], expected["property"])
    return isinstance(given, list) and all(
        isinstance(each.id, dict) and each.part == expected["property"] for each in given
    )


def _output_of(outputs: _Property | list[_Property]) -> str:
    """Dash's name of the outputs of one callback."""
    if isinstance(outputs, _Property):
        return outputs.name
    return f"..{'...'.join(each.name for each in outputs)}.."


def _refuse(reason: str) -> NoReturn:
    abort(400, reason)


def _one_sentence(error: HTTPException) -> Response:
    return Response(f"{error.code}: {error.description}\n", status=error.code, mimetype="text/plain")
