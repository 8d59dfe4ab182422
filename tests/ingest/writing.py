"""Traces as other tools write them: one list of events, in the layouts that real files have."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

Event = Mapping[str, Any]


def complete(
    name: str, start: str, duration: str, *, cat: str = "kernel", pid: Any = 0, tid: Any = 7, **args: Any
) -> Event:
    """A complete event; times are decimal microseconds, printed as given."""
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
"""An event that is not complete; its phase is not its first key."""


class Raw(str):
    """A number that is printed as given."""


def kineto(
    events: Sequence[Event], *, head: Mapping[str, Any] | None = None, tail: Mapping[str, Any] | None = None
) -> str:
    """Layout of libkineto: a line break after the place, and one before the arguments."""
    return _whole(map(_by_kineto, events), head, tail)


def indented(
    events: Sequence[Event], *, head: Mapping[str, Any] | None = None, tail: Mapping[str, Any] | None = None
) -> str:
    """Layout of a tool that reads a trace and writes it again, one value per line."""
    return _whole((_dump(event, indent=2) for event in events), head, tail)


def compact(
    events: Sequence[Event], *, head: Mapping[str, Any] | None = None, tail: Mapping[str, Any] | None = None
) -> str:
    """Layout without spaces."""
    return _whole((_dump(event, separators=(",", ":")) for event in events), head, tail)


LAYOUTS = (kineto, indented, compact)


def _by_kineto(event: Event) -> str:
    if "dur" not in event:
        return _dump(event)
    keys = ("ph", "cat", "name", "pid", "tid")
    place = ", ".join(f'"{key}": {json.dumps(event[key])}' for key in keys)
    return (
        f'{{\n    {place},\n    "ts": {event["ts"]}, "dur": {event["dur"]},\n'
        f'    "args": {{\n      {_dump(event["args"])[1:-1]}\n    }}\n  }}'
    )


def _dump(value: Any, **options: Any) -> str:
    """JSON in which `Raw` numbers are printed as given."""
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
