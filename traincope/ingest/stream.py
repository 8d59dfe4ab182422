"""The text of a file, plain or gzip, in pieces of bounded size, as far as it can be read."""

import codecs
import zlib
from collections.abc import Iterator
from pathlib import Path

from traincope.errors import DataError

CHUNK = 4 << 20
"""Characters of a piece, about: what is parsed at once."""
COMPRESSED = 1 << 16
"""Bytes of a gzip file read at once."""
GZIP_MAGIC = b"\x1f\x8b"
GZIP = 31
"""Window bits that tell zlib to expect gzip's header."""


class Stream:
    """Iterate over it once; then `damage` says why it ended before the file did, if so."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damage: str | None = None

    def __iter__(self) -> Iterator[str]:
        """Raises DataError where the file cannot be opened."""
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
        """gzip's own module loses what it has read when it meets the end of a file that was cut."""
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
    """Byte by byte, for a call that fails gives nothing of what it could read."""
    for at in range(len(packed)):
        try:
            yield inflater.decompress(packed[at : at + 1])
        except zlib.error:
            return
