"""Packets of Perfetto's own trace format, protobuf without a library for it.

The numbers of the fields are those of `protos/perfetto/trace` in github.com/google/perfetto. Times are ns of the
builtin clock REALTIME. A place is the number (`uuid`) of a track: the process in the upper 32 bits.
"""

import struct
from collections.abc import Iterable, Mapping

REALTIME, MONOTONIC = 1, 3
"""Numbers of `BuiltinClock`."""
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
"""Numbers of `TrackEvent.Type`."""
INCREMENTAL_STATE_CLEARED = 1
COUNTERS = 1 << 31
"""Counters of a process have the numbers from here on, its threads those below."""
SEQUENCE = 1
"""Number of the writer: each file has one."""


class Packets:
    """The format of one file. Its methods return pieces of the file."""

    def __init__(self) -> None:
        self._counters: dict[tuple[int, str], int] = {}
        """(Process, name) -> track."""

    def begin(self, snapshots: Iterable[tuple[int, int]]) -> bytes:
        """First piece: instants of both clocks, (monotonic, realtime) in ns."""
        defaults = _message(59, _number(58, REALTIME))
        first = _packet(_number(13, INCREMENTAL_STATE_CLEARED), defaults)
        return first + b"".join(
            _packet(_message(6, _clock(MONOTONIC, own), _clock(REALTIME, axis))) for own, axis in snapshots
        )

    def thread(self, process: int, number: int) -> int:
        return (process << 32) + number

    def name_process(self, process: int, name: str, *, order: int) -> tuple[bytes, ...]:
        described = _message(3, _number(1, process), _text(6, name))
        return (_packet(_message(60, _number(1, process << 32), described, _number(12, order))),)

    def name_thread(self, place: int, name: str, *, order: int) -> tuple[bytes, ...]:
        described = _message(4, _number(1, place >> 32), _number(2, place & 0xFFFFFFFF), _text(5, name))
        return (_packet(_message(60, _number(1, place), described, _number(12, order))),)

    def slice_(
        self, name: str, *, category: str, place: int, at_ns: int, length_ns: int, args: Mapping[str, object]
    ) -> bytes:
        begin = _event(place, BEGIN, at_ns, _text(22, category), _text(23, name), *_annotations(args))
        return begin + _event(place, END, at_ns + length_ns)

    def flow(self, name: str, *, phase: str, number: int, place: int, at_ns: int) -> bytes:
        """A mark in the slice around it, which the arrow joins."""
        ends = _fixed(48 if phase == "f" else 47, number + 1)
        return _event(place, INSTANT, at_ns, _text(22, "joins"), _text(23, name), ends)

    def counter(self, name: str, *, process: int, at_ns: int, unit: str, value: float) -> bytes:
        track = self._counters.get((process, name))
        described = b""
        if track is None:
            track = self._counters[process, name] = (process << 32) + COUNTERS + len(self._counters)
            counter = _message(8, _text(6, unit))
            described = _packet(_message(60, _number(1, track), _text(2, name), _number(5, process << 32), counter))
        return described + _event(track, COUNTER, at_ns, _double(44, value))

    def instant(self, name: str, *, place: int, at_ns: int, args: Mapping[str, object]) -> bytes:
        """A mark of a whole process."""
        return _event(place >> 32 << 32, INSTANT, at_ns, _text(23, name), *_annotations(args))


def _event(track: int, kind: int, at_ns: int, *fields: bytes) -> bytes:
    return _packet(_number(8, at_ns), _message(11, _number(9, kind), _number(11, track), *fields))


def _packet(*fields: bytes) -> bytes:
    return _message(1, *fields, _number(10, SEQUENCE))


def _clock(number: int, at_ns: int) -> bytes:
    return _message(1, _number(1, number), _number(2, at_ns))


def _annotations(args: Mapping[str, object]) -> Iterable[bytes]:
    return (_message(4, _text(10, name), _value(value)) for name, value in args.items() if value is not None)


def _value(value: object) -> bytes:
    """Value of an annotation."""
    if isinstance(value, bool):
        return _number(2, int(value))
    if isinstance(value, int):
        return _number(4, value)
    return _double(5, value) if isinstance(value, float) else _text(6, str(value))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value & 0xFFFFFFFFFFFFFFFF)


def _fixed(field: int, value: int) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<Q", value)


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _text(field: int, text: str) -> bytes:
    return _message(field, text.encode(errors="replace"))


def _message(field: int, *parts: bytes) -> bytes:
    data = b"".join(parts)
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    """Seven bits per byte, lowest first, the highest bit set in all bytes but the last."""
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)
