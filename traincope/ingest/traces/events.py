"""Events in a piece of a trace's text.

msgspec decodes a list of events at once into the fields that are used, and skips all others. It accepts JSON only. In
text that is cut or damaged, or in notations that JSON does not allow, events are decoded one by one.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

import msgspec

ABSENT = msgspec.Raw()
"""A value that an event does not have."""
BOUNDARY = re.compile(rb"\}\s*,\s*\{")
"""Between two events, or between two objects in an event's arguments or strings: then the text before is not JSON."""
NEAR_END = (1 << 10, 1 << 14)
"""Bytes in which an event usually begins, and nearly always."""
GAP = re.compile(r"[\s,]*")

NAMES = {
    "sequence": "Sequence number",
    "forward_thread": "Fwd thread id",
    "num_bytes": "bytes",
    "dims": "Input Dims",
    "types": "Input type",
    "strides": "Input Strides",
    "values": "Concrete Inputs",
    "collective": "Collective name",
    "group": "Process Group Name",
    "description": "Process Group Description",
    "ranks": "Process Group Ranks",
    "group_size": "Group size",
    "in_elements": "In msg nelems",
    "out_elements": "Out msg nelems",
    "in_split": "In split size",
    "out_split": "Out split size",
    "collective_sequence": "Seq",
}
"""Names of arguments as torch prints them."""


class Arguments(msgspec.Struct, gc=False, rename=NAMES):
    """Arguments of an event, as written; grid, block, dims, types, strides and values as JSON."""

    correlation: Any = 0
    sequence: Any = -1
    forward_thread: Any = 0
    num_bytes: Any = -1
    grid: msgspec.Raw = ABSENT
    block: msgspec.Raw = ABSENT
    dims: msgspec.Raw = ABSENT
    types: msgspec.Raw = ABSENT
    strides: msgspec.Raw = ABSENT
    values: msgspec.Raw = ABSENT
    collective: Any = None
    group: Any = None
    description: Any = None
    ranks: Any = None
    group_size: Any = None
    dtype: Any = None
    in_elements: Any = None
    out_elements: Any = None
    in_split: Any = None
    out_split: Any = None
    collective_sequence: Any = None


Text = str | int | float | None


class Complete(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """An event with a duration. Its times are microseconds as they are printed."""

    cat: Text = ""
    name: Text = ""
    pid: Text = ""
    tid: Text = ""
    ts: msgspec.Raw = ABSENT
    dur: msgspec.Raw = ABSENT
    args: Arguments | list[Any] | str | int | float | None = None


OTHER_PHASES = "BEiICbneSTpFstfPNODMVvRc()"
_Other = tuple(msgspec.defstruct("Other", [], gc=False, tag_field="ph", tag=phase) for phase in OTHER_PHASES)
"""Events of other phases: only counted."""
_EVENT: Any = Complete
for _kind in _Other:
    _EVENT |= _kind
ONE, MANY = msgspec.json.Decoder(_EVENT), msgspec.json.Decoder(list[_EVENT])
END = json.JSONDecoder(strict=False)
"""Finds the end of a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """Events of a piece of text."""

    events: list[Complete]
    num_read: int
    """Number of events of all kinds."""
    rest: bytes
    """Text after the last of these events."""


def scan(text: bytes) -> Scan:
    """Decode the events in `text`, which begins between two events. The last may remain until more of it is read."""
    end, begin = _last_boundary(text)
    try:
        events = MANY.decode(b"".join((b"[", memoryview(text)[:end], b"]")))
    except (ValueError, RecursionError):
        return one_by_one(text)
    return Scan(events=_complete(events), num_read=len(events), rest=text[begin:])


def _last_boundary(text: bytes) -> tuple[int, int]:
    """End of the last but one event, and begin of the last one; 0 and 0 if there is only one."""
    for begin in (*(max(0, len(text) - near) for near in NEAR_END), 0):
        *_, last = (None, *BOUNDARY.finditer(text, begin))
        if last is not None:
            return last.start() + 1, last.end() - 1
    return 0, 0


def _complete(events: list[Any]) -> list[Complete]:
    return [event for event in events if type(event) is Complete and event.dur is not ABSENT]


def one_by_one(text: bytes) -> Scan:
    """Decode events one by one, and repair what JSON does not allow, up to text that is not JSON. Values that are no
    objects are only counted.
    """
    characters, used = text.decode("latin-1"), 0
    events: list[Any] = []
    while (begin := _after_gap(characters, used)) < len(characters):
        try:
            value, end = END.raw_decode(characters, begin)
            events.append(_event(text[begin:end]) if isinstance(value, dict) else None)
        except (ValueError, RecursionError):
            if not characters.startswith("{", begin):
                break
            repaired = TOKEN.sub(_repaired, text[begin:])
            if repaired == text[begin:]:
                break
            rest = one_by_one(repaired)
            return Scan(events=_complete(events) + rest.events, num_read=len(events) + rest.num_read, rest=rest.rest)
        used = end
    return Scan(events=_complete(events), num_read=len(events), rest=text[used:])


def _after_gap(characters: str, at: int) -> int:
    gap = GAP.match(characters, at)
    return gap.end() if gap else at


def _event(text: bytes) -> Any:
    try:
        return ONE.decode(text)
    except msgspec.ValidationError:
        return None  # valid JSON, of an unknown phase


TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*(?:"|\Z)|-?\b(?:nan|inf|NaN|Infinity)\b', re.DOTALL)
"""A string, or a number that is not finite, which Kineto has written (https://github.com/pytorch/kineto/issues/105)."""

SOUND = re.compile(rb'"[^"\\\x00-\x1f\x7f-\xff]*"')
"""A string that needs no repair: nearly all are. It only makes the repair of a long text faster."""


def _repaired(token: re.Match[bytes]) -> bytes:
    """A string without control characters, invalid UTF-8 and halves of surrogate pairs; null for a number."""
    text = token.group()
    if SOUND.fullmatch(text):
        return text
    if not text.startswith(b'"'):
        return b"null"
    try:
        return json.dumps(json.loads(text.decode(errors="replace"), strict=False), ensure_ascii=False).encode(
            errors="replace"
        )
    except ValueError:
        return text  # cut at the end of the text, or an invalid escape
