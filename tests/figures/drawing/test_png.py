"""Palette images: the bytes of the format, chunk by chunk."""

import struct
import zlib

import numpy as np

from traincope.figures.drawing.png import of_colours, of_palette


def test_a_file_has_its_chunks_in_order_each_with_its_checksum() -> None:
    raw = of_palette(np.array([[0, 1], [2, 1]], dtype=np.uint8), ["#FF0000", "#0000FF"])
    assert raw[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(raw):
        (length,) = struct.unpack(">I", raw[at : at + 4])
        kind, body = raw[at + 4 : at + 8], raw[at + 8 : at + 8 + length]
        assert struct.unpack(">I", raw[at + 8 + length : at + 12 + length])[0] == zlib.crc32(kind + body)
        chunks[kind] = body
        at += 12 + length
    assert list(chunks) == [b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"]
    assert struct.unpack(">IIBBBBB", chunks[b"IHDR"]) == (2, 2, 8, 3, 0, 0, 0)
    assert chunks[b"PLTE"] == bytes([0, 0, 0, 255, 0, 0, 0, 0, 255])
    assert zlib.decompress(chunks[b"IDAT"]) == bytes([0, 0, 1, 0, 2, 1])


def test_a_colour_image_has_four_bytes_per_pixel_and_no_palette() -> None:
    raw = of_colours(np.array([[[1, 2, 3, 255], [4, 5, 6, 0]]], dtype=np.uint8))
    assert b"PLTE" not in raw
    at = raw.index(b"IDAT")
    (length,) = struct.unpack(">I", raw[at - 4 : at])
    assert zlib.decompress(raw[at + 4 : at + 4 + length]) == bytes([0, 1, 2, 3, 255, 4, 5, 6, 0])
