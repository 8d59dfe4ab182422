"""Convert decimal microseconds, as a trace prints them, to integer ns, a column at a time and never through a float.

Since the epoch a time in ns has 19 digits, and a float holds 16: read through floats, a trace is off by 100 ns and
more.
"""

from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal

import msgspec
import numpy as np

from traincope.arrays import AFTER_ALL_NS, Ints

DECIMALS = 3
"""Digits of a microsecond that are kept, down to ns; the digit after them rounds."""
MAX_DIGITS = 19
"""Digits of a number, with its decimals, that may fit into 64 bits."""
COMMA, POINT = ord(","), ord(".")


def to_ns(microseconds: Sequence[bytes | msgspec.Raw]) -> Ints:
    """Nanoseconds, one entry for each number; half a ns rounds away from 0.

    Raises ValueError for what is not a number, OverflowError for more ns than 64 bits hold.
    """
    ns = _plain_ns(b",".join(microseconds)) if microseconds else None
    return np.array([_decimal_ns(bytes(number)) for number in microseconds], dtype=np.int64) if ns is None else ns


def _plain_ns(text: bytes) -> Ints | None:
    """Numbers separated by commas; None if some are not plain digits, or too large."""
    characters = np.frombuffer(text + b",", dtype=np.uint8)
    ends, points = np.flatnonzero(characters == COMMA), np.flatnonzero(characters == POINT)
    pointed = np.searchsorted(ends, points)
    num_points = np.bincount(pointed, minlength=len(ends))
    digits = np.diff(ends, prepend=-1) - 1 - num_points
    if (
        text.translate(None, b"0123456789.,")
        or num_points.max() > 1
        or not 0 < digits.min() <= digits.max() <= MAX_DIGITS
    ):
        return None
    decimals = np.zeros(len(ends), dtype=np.int64)
    decimals[pointed] = ends[pointed] - points - 1
    up, down = 10 ** np.maximum(DECIMALS - decimals, 0), 10 ** np.maximum(decimals - DECIMALS, 0)
    whole = np.fromstring(text.replace(b".", b""), dtype=np.int64, sep=",")  # the largest integer if it is larger
    if (whole >= (AFTER_ALL_NS - down) // up).any():
        return None
    ns: Ints = (whole * up + down // 2) // down
    return ns


def _decimal_ns(text: bytes) -> int:
    """Any other notation: in quotes, with a sign, an exponent, or very long."""
    try:
        number = Decimal(text.decode("ascii").strip('"'))
        return int((number * 10**DECIMALS).quantize(Decimal(1), rounding=ROUND_HALF_UP))
    except (ArithmeticError, UnicodeDecodeError) as error:
        raise ValueError(f"{text!r} is not a number of microseconds") from error
