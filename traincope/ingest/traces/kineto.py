"""Read a trace of torch's profiler (Kineto's JSON, plain or gzip) into columns, one piece in memory at a time.

    {"schemaVersion": 1, ..., "traceEvents": [{"ph": "X", "cat": "kernel", "ts": <us>, "dur": <us>, ...}, ...], ...}

A truncated file loses its tail: all events before it are read, and `TraceInfo.lost` describes the loss.
"""

import codecs
import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from traincope.errors import DataError
from traincope.ingest.traces.batches import Decoded, Decoder
from traincope.ingest.traces.collectives import groups, whole
from traincope.ingest.traces.columns import Columns
from traincope.ingest.traces.events import GAP
from traincope.ingest.traces.native_batches import make_decoder
from traincope.ingest.traces.stream import Stream
from traincope.store.side_tables.traces import Trace, TraceInfo

EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
MAX_GAP = 64 << 20
"""Bytes without an event, before the first or between two, from which the file is not a trace."""
MAX_SHOWN = 40
MAX_DEPTH = 4


def read_kineto(path: Path, *, step: int | None = None, on_read: Callable[[int], object] = lambda _: None) -> Trace:
    """Read the trace. `step`: the traced step, if known. `on_read` gets the number of bytes of each part of the file.

    Raises DataError if the file cannot be read or is not a trace of torch's profiler.
    """
    stream, columns = Stream(path, on_read=on_read), Columns()
    pieces = iter(stream)
    head, text = _head(path, pieces)
    num_read = num_untimed = 0
    rest = b""
    try:
        for found in _decoded(path, make_decoder(columns.numbers), text, pieces):
            if found.batch is not None:
                columns.add(found.batch)
            num_read, num_untimed, rest = num_read + found.num_read, num_untimed + found.num_untimed, found.rest
        end, lost = _end(rest.decode(errors="replace"), damage=stream.damage, listed=head is None)
        metadata = {**(head or {}), **end}
        if num_untimed and not columns.num_rows:
            raise DataError(f"{path} has no event with a valid time; is it a trace of torch's profiler?")
        info = replace(
            _info(path, metadata, step=step, num_read=num_read, lost=lost),
            num_untimed=num_untimed,
            has_shapes=columns.has_shapes,
            has_strides=columns.has_strides,
        )
        return columns.trace(info, base_ns=whole(metadata.get("baseTimeNanoseconds")) or 0)
    except OverflowError as error:
        raise DataError(f"{path} has times beyond 64 bits; is it a trace of torch's profiler?") from error


def _decoded(path: Path, decoder: Decoder, text: bytes, pieces: Iterator[bytes]) -> Iterator[Decoded]:
    """Decode the text and all further pieces, and at last what remains."""
    parts, size, enough = [text], len(text), decoder.piece
    for piece in pieces:
        parts.append(piece)
        size += len(piece)
        if size >= enough:
            found = decoder.decode(b"".join(parts))
            yield found
            parts, size = [found.rest], len(found.rest)
            enough = max(decoder.piece, 0 if found.num_read else 2 * size)
            if size > MAX_GAP:
                shown = _shown(found.rest)
                raise DataError(f"{path} has no event in {MAX_GAP >> 20} MiB from {shown} on: it is damaged")
    found = decoder.decode(b"".join(parts))
    yield found
    yield decoder.decode(found.rest, last=True)


def _shown(text: bytes) -> str:
    return repr(text[:MAX_SHOWN].decode(errors="replace"))


def _head(path: Path, pieces: Iterator[bytes]) -> tuple[dict[str, Any] | None, bytes]:
    """Object before the events (None: the file is the list of events itself), and the text from the first event on."""
    text = b""
    for piece in pieces:
        text += piece
        begin = text.removeprefix(codecs.BOM_UTF8).lstrip()
        if begin.startswith(b"["):
            return None, begin[1:]
        match = EVENTS.search(begin)
        if match:
            return _object(path, begin[: match.start()] + b'"traceEvents": []}'), begin[match.end() :]
        if (begin and not begin.startswith(b"{")) or len(text) > MAX_GAP:
            break
    raise DataError(
        f"{path} is not a trace of torch's profiler: it has no list of traceEvents; "
        "give a file written by export_chrome_trace() or tensorboard_trace_handler()"
    )


def _object(path: Path, text: bytes) -> dict[str, Any]:
    try:
        return dict(json.loads(text.decode(errors="replace"), strict=False))
    except (ValueError, TypeError) as error:
        if _is_nested(text):
            raise DataError(
                f"{path} has its events inside of another object; write that object as a file of its own"
            ) from error
        raise DataError(f"{path} is damaged before its events: {error}") from error


def _is_nested(text: bytes) -> bool:
    """Return whether the text before the events opens more objects than the one that they are in."""
    for depth in range(1, MAX_DEPTH + 1):
        with suppress(ValueError):
            json.loads(text.decode(errors="replace") + "}" * depth, strict=False)
            return True
    return False


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
    job, devices, host = (metadata.get(key) for key in ("distributedInfo", "deviceProperties", "host_name"))
    job = job if isinstance(job, dict) else {}
    known = [device for device in devices if isinstance(device, dict)] if isinstance(devices, list) else []
    return TraceInfo(
        source=path.name,
        host=host if isinstance(host, str) else None,
        rank=whole(job.get("rank")),
        world_size=whole(job.get("world_size")),
        step=step,
        devices={str(device["id"]): str(device["name"]) for device in known if "id" in device and "name" in device},
        num_read=num_read,
        lost=lost,
        groups=groups(job),
    )
