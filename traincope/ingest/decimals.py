"""Convert decimal microseconds, as a trace prints them, to integer ns, a column at a time and never through a float.

Since the epoch a time in ns has 19 digits, and a float holds 16: read through floats, a trace is off by 100 ns and
more.
"""

from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import Ints

Bytes = NDArray[np.uint8]

DECIMALS = 3
"""Digits of a microsecond that are kept, down to ns; the digit after them rounds."""
MAX_WHOLE_DIGITS = 16
"""Digits before the point. From 9e15 us on, which is the year 2255, ns may exceed 64 bits."""
ZERO, POINT = ord("0"), ord(".")


def to_ns(microseconds: Sequence[str]) -> Ints:
    """Nanoseconds, one entry for each number; half a ns rounds away from 0.

    Raises ValueError for what is not a number, OverflowError for more ns than 64 bits hold.
    """
    ns = np.empty(len(microseconds), dtype=np.int64)
    if not len(ns):
        return ns
    characters = np.array(microseconds, dtype=np.bytes_).view(np.uint8).reshape(len(ns), -1)
    length = np.count_nonzero(characters, axis=1)
    points = characters == POINT
    point = np.where(points.any(axis=1), points.argmax(axis=1), length)
    shapes, shape = np.unique(point * (characters.shape[1] + 1) + length, return_inverse=True)
    for number in range(len(shapes)):
        rows = np.flatnonzero(shape == number)
        same_shape_ns = _same_shape_ns(characters[rows, : length[rows[0]]], point=int(point[rows[0]]))
        ns[rows] = [_decimal_ns(microseconds[row]) for row in rows.tolist()] if same_shape_ns is None else same_shape_ns
    return ns


def _same_shape_ns(characters: Bytes, *, point: int) -> Ints | None:
    """Numbers of equal length and point position; None if they are not plain digits, or very large."""
    digits = np.delete(characters, slice(point, point + 1), axis=1) - ZERO  # below 0 wraps to above 9
    if (
        not digits.size
        or (digits > 9).any()
        or point > MAX_WHOLE_DIGITS
        or (point == MAX_WHOLE_DIGITS and digits[:, 0].max() > 8)
    ):
        return None
    kept = digits[:, : point + DECIMALS].astype(np.int64)
    scale = 10 ** np.arange(point + DECIMALS - 1, point + DECIMALS - 1 - kept.shape[1], -1, dtype=np.int64)
    rounds_up = (digits[:, point + DECIMALS : point + DECIMALS + 1] >= 5).sum(axis=1)
    ns: Ints = kept @ scale + rounds_up
    return ns


def _decimal_ns(text: str) -> int:
    """Any other notation: with a sign, an exponent, or very long."""
    try:
        return int((Decimal(text) * 10**DECIMALS).quantize(Decimal(1), rounding=ROUND_HALF_UP))
    except ArithmeticError as error:
        raise ValueError(f"{text!r} is not a number of microseconds") from error
