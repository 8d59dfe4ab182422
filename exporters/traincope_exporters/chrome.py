"""Events of Chrome's trace format ("Trace Event Format", Google 2016), each a line of JSON, in the order Kineto writes.

Times come in ns and go out as microseconds with three decimals, exactly.
"""

import json
from collections.abc import Mapping

Said = Mapping[str, object]


def microseconds(ns: int) -> str:
    """Of at least 0 ns."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def slice_(name: str, *, category: str, place: str, at_ns: int, length_ns: int, said: Said) -> str:
    """An interval; `place` is what `thread` gives."""
    return (
        f'{{"ph": "X", "cat": {json.dumps(category)}, "name": {json.dumps(name)}, {place}, '
        f'"ts": {microseconds(at_ns)}, "dur": {microseconds(length_ns)}, "args": {json.dumps(said)}}}'
    )


def thread(process: int, number: int) -> str:
    """Where an event lies."""
    return f'"pid": {process}, "tid": {number}'


def flow(name: str, *, phase: str, number: int, place: str, at_ns: int) -> str:
    """A point of an arrow, in the slice around it: the arrow begins with phase `s`, passes by `t` and ends with `f`."""
    return (
        f'{{"ph": "{phase}", "id": {number}, "cat": "joins", "name": {json.dumps(name)}, {place}, '
        f'"ts": {microseconds(at_ns)}, "bp": "e"}}'
    )


def counter(name: str, *, process: int, at_ns: int, unit: str, value: float) -> str:
    """A finite value from an instant on."""
    args = json.dumps({unit: value}, allow_nan=False)
    return f'{{"ph": "C", "name": {json.dumps(name)}, "pid": {process}, "ts": {microseconds(at_ns)}, "args": {args}}}'


def instant(name: str, *, place: str, at_ns: int, said: Said) -> str:
    """A mark over all of a process."""
    return (
        f'{{"ph": "i", "s": "p", "name": {json.dumps(name)}, {place}, '
        f'"ts": {microseconds(at_ns)}, "args": {json.dumps(said)}}}'
    )


def name_process(process: int, name: str, *, order: int) -> tuple[str, str]:
    """What it is called, and where it stands among the others."""
    return (
        f'{{"ph": "M", "name": "process_name", "pid": {process}, "args": {json.dumps({"name": name})}}}',
        f'{{"ph": "M", "name": "process_sort_index", "pid": {process}, "args": {json.dumps({"sort_index": order})}}}',
    )


def name_thread(place: str, name: str, *, order: int) -> tuple[str, str]:
    """Likewise."""
    return (
        f'{{"ph": "M", "name": "thread_name", {place}, "args": {json.dumps({"name": name})}}}',
        f'{{"ph": "M", "name": "thread_sort_index", {place}, "args": {json.dumps({"sort_index": order})}}}',
    )
