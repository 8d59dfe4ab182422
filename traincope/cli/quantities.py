"""Which numbers questions take: what can have been measured, so that every answer is a number too.

As argparse's `type=`: a number that is none, or is endless, or nothing's, is refused in one sentence.
"""

from argparse import ArgumentParser, ArgumentTypeError
from math import isfinite

LEAST, MOST = 1e-12, 1e15
"""Of seconds, hours and TFLOP/s: but 0, nothing that a training has is smaller, or larger."""
MOST_WHOLE = 10**15
"""Of sizes and counts. A product of as many as a formula has stays far below what a float holds."""
SHOWN = 24


def quantity(text: str) -> float:
    """Raises ArgumentTypeError unless it is 0 or of a size between LEAST and MOST."""
    try:
        number = float(text)
    except ValueError:
        raise ArgumentTypeError(f"{_short(text)} is not a number") from None
    if number and not LEAST <= abs(number) <= MOST:
        raise ArgumentTypeError(f"{_short(text)} is not a number between {LEAST:g} and {MOST:g}; is its unit right?")
    return number


def whole(text: str) -> int:
    """Raises ArgumentTypeError unless it is an integer of at most MOST_WHOLE, or as much below 0."""
    try:
        number = int(text)
    except ValueError:
        raise ArgumentTypeError(f"{_short(text)} is not a whole number of at most {MOST_WHOLE:g}") from None
    if abs(number) > MOST_WHOLE:
        raise ArgumentTypeError(f"{_short(text)} is not a whole number of at most {MOST_WHOLE:g}")
    return number


def add_price(parser: ArgumentParser) -> None:
    """`arguments.price_per_gpu_hour`."""
    parser.add_argument(
        "--price-per-gpu-hour",
        type=_price,
        metavar="PRICE",
        help="what an hour of one rank's GPU costs, in any currency: then all losses have their price",
    )


def _price(text: str) -> float:
    refusal = ArgumentTypeError(f"{text} is no price: give a number above 0, as 2.5")
    try:
        price = float(text)
    except ValueError:
        raise refusal from None
    if not (isfinite(price) and price > 0):
        raise refusal
    return price


def _short(text: str) -> str:
    return repr(text) if len(text) <= SHOWN else f"{text[:SHOWN]!r}..."
