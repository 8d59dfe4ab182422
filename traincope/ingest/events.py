"""Events in a piece of a trace's text.

One regular expression finds them if the text is written as Kineto writes it; otherwise a JSON decoder does. The
expression is several times as fast as a JSON parser, because it builds no objects for the events' arguments. Its result
is used only if it provably found all events: if the piece contains as many complete events as it matched.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TEXT = r'"([^"\\]*(?:\\.[^"\\]*)*)"'
PLACE = r'(-?[0-9]+|"[^"\\]*")'
COMPLETE = re.compile(
    rf'\{{\s*"ph": "X",\s*"cat": "([^"\\]*)",\s*"name": {TEXT},\s*"pid": {PLACE},\s*"tid": {PLACE},'
    r'\s*"ts": ([0-9.]+),\s*"dur": ([0-9.]+)(?=[\s,}])(?:\s*,\s*"args": \{([^{}]*)\})?'
)
"""A complete event as Kineto of any torch version writes it. Its arguments are left out if they contain an object."""
OPENING = re.compile(r'\{\s*"ph"')
"""Begin of an event. Inside a string the quotes would be escaped."""

DECODER = json.JSONDecoder(parse_float=str, parse_int=str)
"""Keeps numbers as they are written."""
GAP = re.compile(r"[\s,]*")

Event = tuple[str, str, str, str, str, str, str]
"""A complete event as written: category, name, process, thread, microseconds of its start and its duration, and the
JSON inside its arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """Events of a piece of text."""

    events: list[Event]
    num_read: int
    """Number of events of all kinds."""
    used: int
    """Characters up to the end of the last event, or to the begin of what remains for the next piece."""


def find(text: str) -> Scan:
    """Find the events in `text`, which begins between two events. The last may remain until more of it is read."""
    openings = OPENING.search(text)
    cut = text.rfind(openings.group()) if openings else 0
    return _matched(text, cut) or decode(text)


def _matched(text: str, cut: int) -> Scan | None:
    """Events by the regular expression; None if some events before `cut` are written differently."""
    body = text[:cut]
    num_read = body.count('"ph"')
    if not num_read or body.count('"ph": "') != num_read:
        return None
    events: list[Event] = COMPLETE.findall(body)
    if len(events) != body.count('"ph": "X"'):
        return None
    if "\\" in body:
        events = [_unescaped(event) if "\\" in event[1] else event for event in events]
    return Scan(events=events, num_read=num_read, used=cut)


def _unescaped(event: Event) -> Event:
    category, name, process, thread, start, duration, arguments = event
    return category, str(json.loads(f'"{name}"', strict=False)), process, thread, start, duration, arguments


def decode(text: str) -> Scan:
    """Decode complete events one by one, in any notation that JSON allows."""
    events, num_read, used = [], 0, 0
    while True:
        begin = _after_gap(text, used)
        if begin == len(text) or text[begin] != "{":
            break
        try:
            raw, used = DECODER.raw_decode(text, begin)
        except (json.JSONDecodeError, RecursionError):
            break
        num_read += 1
        if raw.get("ph") == "X" and "dur" in raw:
            events.append(_event(raw))
    return Scan(events=events, num_read=num_read, used=used)


def _after_gap(text: str, at: int) -> int:
    gap = GAP.match(text, at)
    return gap.end() if gap else at


def _event(raw: Mapping[str, Any]) -> Event:
    try:
        category, process, thread = (str(raw.get(key, "")) for key in ("cat", "pid", "tid"))
        name, start, duration = (str(raw[key]) for key in ("name", "ts", "dur"))
    except KeyError as error:
        raise ValueError(f"a complete event without {error}") from error
    return category, name, process, thread, start, duration, json.dumps(raw.get("args", {}))[1:-1]
