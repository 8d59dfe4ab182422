"""Traces as other tools write them: one list of events, in the layouts that were seen in the wild."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

Event = Mapping[str, Any]


def complete(
    name: str, start: str, duration: str, *, cat: str = "kernel", pid: Any = 0, tid: Any = 7, **args: Any
) -> Event:
    """A complete event; times are decimal microseconds as they are to be printed."""
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": Raw(start),
        "dur": Raw(duration),
        "args": args,
    }


MARK: Event = {"name": "process_name", "ph": "M", "pid": 1, "tid": 0, "args": {"name": "python"}}
"""Not complete, and its phase is not its first key."""


class Raw(str):
    """A number that is printed as it was given."""


def kineto(
    events: Sequence[Event], *, head: Mapping[str, Any] | None = None, tail: Mapping[str, Any] | None = None
) -> str:
    """As libkineto prints: a line break after the place, and one before the arguments."""
    return _whole(map(_by_kineto, events), head, tail)


def indented(
    events: Sequence[Event], *, head: Mapping[str, Any] | None = None, tail: Mapping[str, Any] | None = None
) -> str:
    """As a tool writes that has read the trace and dumps it again, a value a line."""
    return _whole((_dump(event, indent=2) for event in events), head, tail)


def compact(
    events: Sequence[Event], *, head: Mapping[str, Any] | None = None, tail: Mapping[str, Any] | None = None
) -> str:
    """Without any blank."""
    return _whole((_dump(event, separators=(",", ":")) for event in events), head, tail)


LAYOUTS = (kineto, indented, compact)


def _by_kineto(event: Event) -> str:
    if event["ph"] != "X":
        return _dump(event)
    keys = ("ph", "cat", "name", "pid", "tid")
    place = ", ".join(f'"{key}": {json.dumps(event[key])}' for key in keys)
    return (
        f'{{\n    {place},\n    "ts": {event["ts"]}, "dur": {event["dur"]},\n'
        f'    "args": {{\n      {_dump(event["args"])[1:-1]}\n    }}\n  }}'
    )


def _dump(value: Any, **options: Any) -> str:
    """JSON, in which numbers that were given as text are printed as that."""
    marked, numbers = _marked(value, [])
    text = json.dumps(marked, **options)
    for number, raw in enumerate(numbers):
        text = text.replace(f'"<number {number}>"', raw)
    return text


def _marked(value: Any, numbers: list[str]) -> tuple[Any, list[str]]:
    if isinstance(value, Raw):
        numbers.append(str(value))
        return f"<number {len(numbers) - 1}>", numbers
    if isinstance(value, Mapping):
        return {key: _marked(inner, numbers)[0] for key, inner in value.items()}, numbers
    return value, numbers


def _whole(events: Any, head: Mapping[str, Any] | None, tail: Mapping[str, Any] | None) -> str:
    before = "".join(f"{json.dumps(key)}: {json.dumps(value)},\n  " for key, value in (head or {}).items())
    after = "".join(f",\n  {json.dumps(key)}: {json.dumps(value)}" for key, value in (tail or {}).items())
    return f'{{\n  "schemaVersion": 1,\n  {before}"traceEvents": [\n  {",".join(events)}\n  ]{after}\n}}\n'
