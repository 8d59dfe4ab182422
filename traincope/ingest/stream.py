"""Text of a file, plain or gzip, in pieces of bounded size, as far as it is readable."""

import codecs
import zlib
from collections.abc import Iterator
from pathlib import Path

from traincope.errors import DataError

CHUNK = 4 << 20
"""Approximate characters per piece, which is parsed at once."""
COMPRESSED = 1 << 16
"""Bytes of a gzip file that are read at once."""
GZIP_MAGIC = b"\x1f\x8b"
GZIP = 31
"""Window bits for zlib to expect gzip's header."""


class Stream:
    """Pieces of a file's text. Iterate once; afterwards `damage` is the reason if it ended before the file did."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damage: str | None = None

    def __iter__(self) -> Iterator[str]:
        """Pieces of the text. Raises DataError if the file cannot be opened."""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        try:
            with self.path.open("rb") as file:
                packed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
            for piece in self._inflated() if packed else self._plain():
                yield decoder.decode(piece)
        except OSError as error:
            raise DataError(f"{self.path} cannot be read: {error.strerror or error}") from error

    def _plain(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            while piece := file.read(CHUNK):
                yield piece

    def _inflated(self) -> Iterator[bytes]:
        """Pieces of a gzip file. The gzip module would lose what it has read when a truncated file ends."""
        inflater = zlib.decompressobj(GZIP)
        with self.path.open("rb") as file:
            packed = b""
            while packed := packed or file.read(COMPRESSED):
                if inflater.eof:
                    inflater = zlib.decompressobj(GZIP)
                before = inflater.copy()
                try:
                    yield inflater.decompress(packed, CHUNK)
                except zlib.error as error:
                    self.damage = f"its gzip data is damaged ({error})"
                    yield b"".join(_as_far_as_whole(before, packed))
                    return
                packed = inflater.unused_data.lstrip(b"\0") if inflater.eof else inflater.unconsumed_tail
        if not inflater.eof:
            self.damage = "its gzip data ends before its end"


def _as_far_as_whole(inflater: "zlib._Decompress", packed: bytes) -> Iterator[bytes]:
    """Inflate byte by byte, because a call that fails returns none of what it could read."""
    for at in range(len(packed)):
        try:
            yield inflater.decompress(packed[at : at + 1])
        except zlib.error:
            return
