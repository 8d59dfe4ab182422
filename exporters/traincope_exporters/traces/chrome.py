"""Events of Chrome's trace format ("Trace Event Format", Google 2016), one line of JSON each, with keys in Kineto's
order.

Times in ns become microseconds with three decimals, exactly.
"""

import json
from collections.abc import Mapping

Args = Mapping[str, object]


def microseconds(ns: int) -> str:
    """Format ns as microseconds. ns must not be negative."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def slice_(name: str, *, category: str, place: str, at_ns: int, length_ns: int, args: Args) -> str:
    """An interval. `place` comes from `thread`."""
    return (
        f'{{"ph": "X", "cat": {json.dumps(category)}, "name": {json.dumps(name)}, {place}, '
        f'"ts": {microseconds(at_ns)}, "dur": {microseconds(length_ns)}, "args": {json.dumps(args)}}}'
    )


def thread(process: int, number: int) -> str:
    """Place of an event: process and thread."""
    return f'"pid": {process}, "tid": {number}'


def flow(name: str, *, phase: str, number: int, place: str, at_ns: int) -> str:
    """Point of an arrow in the slice around it. Phase `s` begins the arrow, `t` passes through, `f` ends it."""
    return (
        f'{{"ph": "{phase}", "id": {number}, "cat": "joins", "name": {json.dumps(name)}, {place}, '
        f'"ts": {microseconds(at_ns)}, "bp": "e"}}'
    )


def counter(name: str, *, process: int, at_ns: int, unit: str, value: float) -> str:
    """A finite value from an instant on."""
    args = json.dumps({unit: value}, allow_nan=False)
    return f'{{"ph": "C", "name": {json.dumps(name)}, "pid": {process}, "ts": {microseconds(at_ns)}, "args": {args}}}'


def instant(name: str, *, place: str, at_ns: int, args: Args) -> str:
    """A mark across a whole process."""
    return (
        f'{{"ph": "i", "s": "p", "name": {json.dumps(name)}, {place}, '
        f'"ts": {microseconds(at_ns)}, "args": {json.dumps(args)}}}'
    )


def name_process(process: int, name: str, *, order: int) -> tuple[str, str]:
    """Name of a process and its order among the others."""
    return (
        f'{{"ph": "M", "name": "process_name", "pid": {process}, "args": {json.dumps({"name": name})}}}',
        f'{{"ph": "M", "name": "process_sort_index", "pid": {process}, "args": {json.dumps({"sort_index": order})}}}',
    )


def name_thread(place: str, name: str, *, order: int) -> tuple[str, str]:
    """Name of a thread and its order among the others."""
    return (
        f'{{"ph": "M", "name": "thread_name", {place}, "args": {json.dumps({"name": name})}}}',
        f'{{"ph": "M", "name": "thread_sort_index", {place}, "args": {json.dumps({"sort_index": order})}}}',
    )
