"""The native decoder of traces: its file and its functions. It depends on no torch.

It decodes text as torch's profiler writes it, and refuses all other text: then Python decodes
(`ingest.traces.native_batches`).
"""

import ctypes
from collections.abc import Callable
from ctypes import POINTER, c_bool, c_char_p, c_int, c_int64, c_void_p
from enum import IntEnum, IntFlag
from functools import cache
from pathlib import Path

import numpy as np

from traincope.native.cached import VARIABLE, Found, Use, find_built, name_of, resolved_use

DECODER_SOURCES = Path(__file__).parent / "trace_decoder"

ROW = np.dtype(
    [
        *((name, np.int64) for name in ("start_ns", "duration_ns", "correlation", "sequence", "forward_thread")),
        ("num_bytes", np.int64),
        *((name, np.int32) for name in ("category", "name", "lane", "launch", "arguments_begin", "arguments_end")),
        *((name, np.int32) for name in ("flags", "unused")),
    ]
)
"""An event with a duration (`decoder.cpp`). Its codes are numbers of texts."""


class Flag(IntFlag):
    """Facts of an event's arguments."""

    SHAPES = 1
    STRIDES = 2
    COLLECTIVE = 4
    UNUSUAL = 8
    """They have a string or a number that msgspec may refuse."""


class Table(IntEnum):
    """Tables of texts, which are JSON."""

    CATEGORY = 0
    NAME = 1
    LANE = 2
    """Process and thread, as a list."""
    LAUNCH = 3


class DecodedText(ctypes.Structure):
    """Numbers of rows and of events of all kinds, and the bytes of text that they take."""

    _fields_ = (("num_rows", c_int64), ("num_read", c_int64), ("used", c_int64))


class DecoderLibrary:
    """The loaded library."""

    def __init__(self, path: Path) -> None:
        """Raises OSError if it cannot be loaded, AttributeError if it is another library."""
        self._library = ctypes.CDLL(str(path))
        self._create = self._function("create_decoder", c_void_p)
        self.destroy = self._function("destroy_decoder", None, c_void_p)
        self.decode = self._function(
            "decode", c_bool, c_void_p, c_char_p, c_int64, c_void_p, c_int64, POINTER(DecodedText)
        )
        self._num_texts = self._function("num_texts", c_int64, c_void_p, c_int)
        self._text_bytes = self._function("text_bytes", c_void_p, c_void_p, c_int)
        self._text_begins = self._function("text_begins", c_void_p, c_void_p, c_int)

    def _function(self, name: str, result: type | None, *arguments: type) -> Callable[..., int]:
        found = getattr(self._library, f"traincope_{name}")
        found.restype, found.argtypes = result, arguments
        return found  # type: ignore[no-any-return]

    def create(self) -> int:
        """Make a decoder, and return its handle for all other functions. Raises MemoryError."""
        handle = self._create()
        if not handle:
            raise MemoryError
        return handle

    def texts(self, handle: int, table: Table, begin: int) -> list[bytes]:
        """Texts of a table from this number on."""
        count = self._num_texts(handle, table) - begin
        if not count:
            return []
        begins = self._text_begins(handle, table) + begin * ctypes.sizeof(c_int64)
        first, *ends = (c_int64 * (count + 1)).from_address(begins)
        joined = ctypes.string_at(self._text_bytes(handle, table) + first, ends[-1] - first)
        return [joined[start - first : end - first] for start, end in zip([first, *ends[:-1]], ends, strict=True)]


@cache
def decoder_name() -> str:
    """Name of the decoder's file for this machine and these sources."""
    return name_of("trace-decoder", sorted(DECODER_SOURCES.iterdir()))


def find_decoder() -> Found:
    """Search the user's cache."""
    if resolved_use() is Use.OFF:
        return Found(path=None, why=f"${VARIABLE} is off")
    return find_built(decoder_name())


@cache
def load_decoder(path: Path) -> DecoderLibrary:
    """Load the decoder, once per process. Raises OSError or AttributeError."""
    return DecoderLibrary(path)
