"""Encode images as PNG (ISO/IEC 15948) with zlib alone."""

import struct
import zlib
from base64 import b64encode
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

SIGNATURE = b"\x89PNG\r\n\x1a\n"
BITS, PALETTE, COLOURS = 8, 3, 6
"""Bits per channel; colour types: palette index, and RGBA."""
FAST = 1
"""zlib level; the image stays on this machine."""


def data_address(file: bytes) -> str:
    """The `data:` address of a PNG file."""
    return "data:image/png;base64," + b64encode(file).decode("ascii")


def of_palette(image: NDArray[np.uint8], colours: Sequence[str]) -> bytes:
    """Encode an image (row, column): 0 is transparent, n is `colours[n - 1]` ("#RRGGBB", at most 255)."""
    palette = b"\0\0\0" + b"".join(bytes.fromhex(colour.removeprefix("#")) for colour in colours)
    return _file(image, kind=PALETTE, between=((b"PLTE", palette), (b"tRNS", b"\0")))


def of_colours(image: NDArray[np.uint8]) -> bytes:
    """Encode an image (row, column, RGBA)."""
    return _file(image, kind=COLOURS, between=())


def _file(image: NDArray[np.uint8], *, kind: int, between: Sequence[tuple[bytes, bytes]]) -> bytes:
    height, width = image.shape[:2]
    flat = image.reshape(height, -1)
    lines = np.zeros((height, flat.shape[1] + 1), dtype=np.uint8)  # each begins with its filter: none
    lines[:, 1:] = flat
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, BITS, kind, 0, 0, 0)),
        *between,
        (b"IDAT", zlib.compress(lines.tobytes(), FAST)),
        (b"IEND", b""),
    )
    return SIGNATURE + b"".join(_chunk(name, body) for name, body in chunks)


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
