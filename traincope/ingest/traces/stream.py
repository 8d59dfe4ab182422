"""Bytes of a file, plain or gzip, in pieces of bounded size, as far as it is readable."""

import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from isal import isal_zlib

from traincope.errors import DataError

CHUNK = 1 << 18
"""Bytes per piece at most. Larger pieces are slower: their events leave the processor's cache."""
COMPRESSED = 1 << 16
"""Bytes of a gzip file that are read at once."""
GZIP_MAGIC = b"\x1f\x8b"
GZIP = 31
"""Window bits for zlib to expect gzip's header."""
ISAL_ERROR: type[Exception] = isal_zlib.error  # type: ignore[assignment]  # its stub declares an instance


class Stream:
    """Pieces of a file. Iterate once; afterwards `damage` is the reason if it ended before the file did.

    `on_read` gets the number of bytes that were read of the file; those of a damaged file are read twice.
    """

    def __init__(self, path: Path, *, on_read: Callable[[int], object] = lambda _: None) -> None:
        self.path = path
        self.damage: str | None = None
        self._on_read = on_read

    def __iter__(self) -> Iterator[bytes]:
        """Pieces of the file. Raises DataError if it cannot be opened."""
        try:
            with self.path.open("rb") as file:
                packed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
            yield from self._inflated() if packed else self._read(CHUNK)
        except OSError as error:
            raise DataError(f"{self.path} cannot be read: {error.strerror or error}") from error

    def _read(self, size: int) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            while piece := file.read(size):
                self._on_read(len(piece))
                yield piece

    def _inflated(self) -> Iterator[bytes]:
        """Pieces of a gzip file, by isal, which is faster. If it fails, zlib reads again, up to the damaged byte."""
        given = 0
        try:
            for piece in self._members(isal_zlib.decompressobj, _fast):
                given += len(piece)
                yield piece
            return
        except ISAL_ERROR:
            pass
        try:
            for piece in self._members(zlib.decompressobj, _exact):
                yield piece[max(given, 0) :]
                given -= len(piece)
        except zlib.error as error:
            self.damage = f"its gzip data is damaged ({error})"

    def _members(self, make: Callable[[int], Any], inflate: Callable[[Any, bytes], Iterator[bytes]]) -> Iterator[bytes]:
        """Pieces of all members. The gzip module would lose what it has read when a truncated file ends."""
        inflater, packed = make(GZIP), b""
        with self.path.open("rb") as file:
            while packed := packed or self._packed(file):
                if inflater.eof:
                    inflater = make(GZIP)
                yield from inflate(inflater, packed)
                packed = inflater.unused_data.lstrip(b"\0") if inflater.eof else inflater.unconsumed_tail
        if not inflater.eof:
            self.damage = "its gzip data ends before its end"
            while piece := inflater.decompress(b"", CHUNK):
                yield piece

    def _packed(self, file: BinaryIO) -> bytes:
        packed = file.read(COMPRESSED)
        self._on_read(len(packed))
        return packed


def _fast(inflater: Any, packed: bytes) -> Iterator[bytes]:
    yield inflater.decompress(packed, CHUNK)


def _exact(inflater: Any, packed: bytes) -> Iterator[bytes]:
    """Inflate byte by byte after an error, because a call that fails returns none of what it could read."""
    before = inflater.copy()
    try:
        yield inflater.decompress(packed, CHUNK)
    except zlib.error:
        readable = bytearray()
        with suppress(zlib.error):
            for at in range(len(packed)):
                readable += before.decompress(packed[at : at + 1])
        yield bytes(readable)
        raise
