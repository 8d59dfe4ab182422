"""Decoding by the native decoder, where it is built: the batches that msgspec's events make, in less time."""

import weakref
from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from traincope.arrays import Codes, Ints
from traincope.ingest.traces.batches import NOTHING, SKIPPED, STALLS, Batch, Decoded, Decoder, Numbers, PlainDecoder
from traincope.ingest.traces.events import Arguments, Text
from traincope.native.decoder import ROW, DecodedText, DecoderLibrary, Flag, Table, find_decoder, load_decoder
from traincope.store.side_tables.traces import PYTHON_FUNCTION, UNKNOWN

BYTES_PER_EVENT = 64
"""An event with a duration takes more, as torch writes it."""
ARGUMENTS = msgspec.json.Decoder(Arguments)
UNREFERENCED = -1


class Kind(IntEnum):
    """What happens to an event, by its category or name."""

    KEPT = 0
    LEFT_OUT = 1
    STACK = 2
    """A Python call: its name decides."""
    OTHER = 3
    """The plain decoder decodes it."""


def make_decoder(numbers: Mapping[str, Numbers]) -> Decoder:
    """Make the native decoder where its library is built, otherwise the plain one."""
    try:
        path = find_decoder().path
        return PlainDecoder(numbers) if path is None else NativeDecoder(load_decoder(path), numbers)
    except (OSError, AttributeError):
        return PlainDecoder(numbers)


class NativeDecoder:
    """Decode by the native library what it can decode, and by msgspec all other text."""

    piece = 1 << 20

    def __init__(self, library: DecoderLibrary, numbers: Mapping[str, Numbers]) -> None:
        self._plain, self._library = PlainDecoder(numbers), library
        handle = self._handle = library.create()
        weakref.finalize(self, library.destroy, handle)
        self._rows = np.empty(0, dtype=ROW)
        text, pair = msgspec.json.Decoder(Text), msgspec.json.Decoder(tuple[Text, Text])
        self._categories = Values(library, handle, Table.CATEGORY, text.decode, numbers["category"])
        self._names = Values(library, handle, Table.NAME, text.decode, numbers["name"])
        self._lanes = Values(library, handle, Table.LANE, pair.decode, numbers["lane"])
        self._launches = Values(library, handle, Table.LAUNCH, bytes, numbers["launch"])

    def decode(self, text: bytes, *, last: bool = False) -> Decoded:
        """Decode a piece. Its batch is valid until the next one."""
        room, result = len(text) // BYTES_PER_EVENT + 1, DecodedText()
        if len(self._rows) < room:
            self._rows = np.empty(room, dtype=ROW)
        address = self._rows.ctypes.data
        if last or not self._library.decode(self._handle, text, len(text), address, room, result):
            return self._plain.decode(text, last=last)
        try:
            batch = self._batch(self._rows[: result.num_rows], text)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return self._plain.decode(text)
        return Decoded(batch=batch, num_read=result.num_read, num_untimed=0, rest=text[result.used :])

    def _batch(self, rows: NDArray[np.void], text: bytes) -> Batch | None:
        """Kept events. Raises DecodeError or UnicodeDecodeError if the plain decoder must decode one."""
        for values in (self._categories, self._names, self._lanes, self._launches):
            values.update()
        kinds = self._categories.kinds(rows["category"], _kind_of_category)
        stacks = np.flatnonzero(kinds == Kind.STACK)
        kinds[stacks] = self._names.kinds(rows["name"][stacks], _kind_of_name)
        kept = np.flatnonzero(kinds == Kind.KEPT)
        rows = rows if len(kept) == len(rows) else rows.take(kept)
        if (kinds == Kind.OTHER).any() or (rows["flags"] & Flag.UNUSUAL).any():
            raise msgspec.DecodeError("an event for the plain decoder")
        if not len(rows):
            return None
        of_events = {"category": self._categories, "name": self._names, "lane": self._lanes}
        for column, values in of_events.items():
            values.decode(rows[column])
        return NativeBatch(
            rows,
            text,
            **{column: values.codes(rows[column]) for column, values in of_events.items()},
            launches=self._launches,
        )


def _kind_of_category(category: Any) -> Kind:
    if category in ("", None):
        return Kind.OTHER
    return Kind.STACK if category == PYTHON_FUNCTION else Kind.LEFT_OUT if category in SKIPPED else Kind.KEPT


def _kind_of_name(name: Any) -> Kind:
    return Kind.KEPT if STALLS.fullmatch(str(name)) else Kind.LEFT_OUT


class Values:
    """Values of the texts in a table of the library, by the texts' numbers."""

    def __init__(
        self,
        library: DecoderLibrary,
        handle: int,
        table: Table,
        decode: Callable[[bytes], Any],
        numbers: Numbers,
    ) -> None:
        self._new_texts = partial(library.texts, handle, table)
        self._decode, self._numbers = decode, numbers
        self._texts: list[bytes] = []
        self._new: dict[int, Any] = {}
        self._codes, self._kinds = np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int8)

    def update(self) -> None:
        """Take the texts that are new in the library."""
        new = self._new_texts(len(self._texts))
        if new:
            self._texts += new
            self._codes = np.append(self._codes, np.full(len(new), UNREFERENCED, dtype=np.int32))
            self._kinds = np.append(self._kinds, np.full(len(new), UNREFERENCED, dtype=np.int8))

    def decode(self, texts: Codes) -> None:
        """Decode values that are new among those of kept events. Raises DecodeError or UnicodeDecodeError."""
        new = dict.fromkeys(texts[self._codes[texts] == UNREFERENCED].tolist())
        self._new = {text: self._decode(self._texts[text]) for text in new}

    def codes(self, texts: Codes) -> Codes:
        """Numbers of the values, which are decoded, among those of kept events."""
        for text, value in self._new.items():
            self._codes[text] = self._numbers[value]
        self._new = {}
        codes: Codes = self._codes[texts]
        return codes

    def kinds(self, texts: Codes, kind_of: Callable[[Any], Kind]) -> NDArray[np.int8]:
        """What happens to events with these values."""
        kinds = self._kinds[texts]
        new = set(texts[kinds == UNREFERENCED].tolist())
        for text in new:
            try:
                self._kinds[text] = kind_of(self._decode(self._texts[text]))
            except (msgspec.MsgspecError, UnicodeDecodeError):
                self._kinds[text] = Kind.OTHER
        return self._kinds[texts] if new else kinds


class NativeBatch:
    """Events that the library decoded."""

    def __init__(
        self, rows: NDArray[np.void], text: bytes, *, category: Codes, name: Codes, lane: Codes, launches: Values
    ) -> None:
        self.start_ns, self.duration_ns, self.correlation = rows["start_ns"], rows["duration_ns"], rows["correlation"]
        self.category, self.name, self.lane = category, name, lane
        self._rows, self._text, self._launches = rows, text, launches

    def arguments(self, row: int) -> Arguments:
        begin, end = self._rows["arguments_begin"][row], self._rows["arguments_end"][row]
        return ARGUMENTS.decode(self._text[begin:end]) if end else NOTHING

    def sequence(self, rows: Ints) -> Ints:
        return self._of("sequence", rows)

    def forward_thread(self, rows: Ints) -> Ints:
        return self._of("forward_thread", rows)

    def num_bytes(self, rows: Ints) -> Ints:
        return self._of("num_bytes", rows)

    def launch(self, rows: Ints) -> Codes:
        texts = self._rows["launch"][rows]
        codes = np.full(len(rows), UNKNOWN, dtype=np.int32)
        self._launches.decode(texts[texts >= 0])
        codes[texts >= 0] = self._launches.codes(texts[texts >= 0])
        return codes

    def with_shapes(self, rows: Ints) -> Ints:
        return self._flagged(rows, Flag.SHAPES)

    def with_strides(self, rows: Ints) -> Ints:
        return self._flagged(rows, Flag.STRIDES)

    def with_collective(self, rows: Ints) -> Ints:
        return self._flagged(rows, Flag.COLLECTIVE)

    def _of(self, name: str, rows: Ints) -> Ints:
        column: Ints = self._rows[name][rows]
        return column

    def _flagged(self, rows: Ints, flag: Flag) -> Ints:
        flagged: Ints = rows[self._rows["flags"][rows] & flag != 0]
        return flagged
