"""Read a trace of torch's profiler (Kineto's JSON, plain or gzip) into columns, one piece in memory at a time.

    {"schemaVersion": 1, ..., "traceEvents": [{"ph": "X", "cat": "kernel", "ts": <us>, "dur": <us>, ...}, ...], ...}

A truncated file loses its tail: all events before it are read, and `TraceInfo.lost` describes the loss.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from traincope.errors import DataError
from traincope.ingest.collectives import groups
from traincope.ingest.columns import Columns
from traincope.ingest.events import GAP, decode, find
from traincope.ingest.stream import Stream
from traincope.store.traces import Trace, TraceInfo

EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
MAX_GAP = 64 << 20
"""Characters without an event, before the first or between two, from which the file is not a trace."""
MAX_SHOWN = 40


def read_kineto(path: Path, *, step: int | None = None) -> Trace:
    """Read the trace. `step`: the traced step, if known.

    Raises DataError if the file cannot be read or is not a trace of torch's profiler.
    """
    stream, columns = Stream(path), Columns()
    pieces = iter(stream)
    head, text = _head(path, pieces)
    num_read = 0
    try:
        while True:
            scan = find(text)
            columns.add(scan.events)
            num_read, text = num_read + scan.num_read, text[scan.used :]
            piece = next(pieces, None)
            if piece is None:
                break
            text = _joined(path, text, piece)
        last = decode(text)
        columns.add(last.events)
        end, lost = _end(text[last.used :], damage=stream.damage, listed=head is None)
        info = _info(path, {**(head or {}), **end}, step=step, num_read=num_read + last.num_read, lost=lost)
        return columns.trace(info, base_ns=_number({**(head or {}), **end}, "baseTimeNanoseconds") or 0)
    except (ValueError, OverflowError) as error:
        raise DataError(
            f"{path} has an event with an invalid time ({error}); is it a trace of torch's profiler?"
        ) from error


def _joined(path: Path, text: str, piece: str) -> str:
    if len(text) > MAX_GAP:
        raise DataError(f"{path} has no event in {MAX_GAP >> 20} MiB from {text[:MAX_SHOWN]!r} on: it is damaged")
    return text + piece


def _head(path: Path, pieces: Iterator[str]) -> tuple[dict[str, Any] | None, str]:
    """Object before the events (None: the file is the list of events itself), and the text from the first event on."""
    text = ""
    for piece in pieces:
        text += piece
        begin = text.lstrip("\ufeff \t\r\n")
        if begin.startswith("["):
            return None, begin[1:]
        match = EVENTS.search(text)
        if match:
            return _object(path, text[: match.start()] + '"traceEvents": []}'), text[match.end() :]
        if (begin and not begin.startswith("{")) or len(text) > MAX_GAP:
            break
    raise DataError(
        f"{path} is not a trace of torch's profiler: it has no list of traceEvents; "
        "give a file written by export_chrome_trace() or tensorboard_trace_handler()"
    )


def _object(path: Path, text: str) -> dict[str, Any]:
    try:
        return dict(json.loads(text, strict=False))
    except (ValueError, TypeError) as error:
        raise DataError(f"{path} is damaged before its events: {error}") from error


def _end(text: str, *, damage: str | None, listed: bool) -> tuple[dict[str, Any], str | None]:
    """Object after the events, and a description of what is lost, if anything is."""
    rest = GAP.sub("", text, count=1)
    if rest.startswith("]") and listed:
        return {}, damage
    if rest.startswith("]"):
        try:
            return dict(json.loads("{" + GAP.sub("", rest[1:], count=1), strict=False)), damage
        except (ValueError, TypeError):
            return {}, damage or "it ends after its events, in the description of the run"
    if listed and not rest and damage is None:
        return {}, None
    why = damage or "it ends before its events do"
    return {}, f"{why}; {len(rest):,} characters after the last whole event are lost"


def _info(path: Path, metadata: dict[str, Any], *, step: int | None, num_read: int, lost: str | None) -> TraceInfo:
    job, devices = metadata.get("distributedInfo"), metadata.get("deviceProperties")
    job = job if isinstance(job, dict) else {}
    known = [device for device in devices if isinstance(device, dict)] if isinstance(devices, list) else []
    return TraceInfo(
        source=path.name,
        rank=_number(job, "rank"),
        world_size=_number(job, "world_size"),
        step=step,
        devices={str(device["id"]): str(device["name"]) for device in known if "id" in device and "name" in device},
        num_read=num_read,
        lost=lost,
        groups=groups(job),
    )


def _number(metadata: dict[str, Any], name: str) -> int | None:
    value = metadata.get(name)
    return value if type(value) is int and value >= 0 else None
