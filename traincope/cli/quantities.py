"""Types of numeric arguments for argparse. Rejects non-numbers and out-of-range values in one sentence.

The ranges contain everything that a training can have, and keep every answer finite.
"""

from argparse import ArgumentParser, ArgumentTypeError, _ArgumentGroup
from math import isfinite

from traincope.units import CURRENCY

MIN_QUANTITY, MAX_QUANTITY = 1e-12, 1e15
"""Range of seconds, hours and TFLOP/s of a training. 0 is also allowed."""
MAX_WHOLE = 10**15
"""Largest size or count. The products in formulas then stay far below the largest float."""
MAX_SHOWN = 24


def quantity(text: str) -> float:
    """Return the number. Raises ArgumentTypeError unless it is 0 or its absolute value is within the limits."""
    try:
        number = float(text)
    except ValueError:
        raise ArgumentTypeError(f"{_short(text)} is not a number") from None
    if number and not MIN_QUANTITY <= abs(number) <= MAX_QUANTITY:
        raise ArgumentTypeError(
            f"{_short(text)} is not a number between {MIN_QUANTITY:g} and {MAX_QUANTITY:g}; is its unit right?"
        )
    return number


def whole(text: str) -> int:
    """Return the integer. Raises ArgumentTypeError if its absolute value is above MAX_WHOLE."""
    try:
        number = int(text)
    except ValueError:
        raise ArgumentTypeError(f"{_short(text)} is not a whole number of at most {MAX_WHOLE:g}") from None
    if abs(number) > MAX_WHOLE:
        raise ArgumentTypeError(f"{_short(text)} is not a whole number of at most {MAX_WHOLE:g}")
    return number


def add_price(parser: ArgumentParser | _ArgumentGroup) -> None:
    """Add `--price-per-gpu-hour` and `--currency`, parsed to `price_per_gpu_hour` and `currency`."""
    parser.add_argument(
        "--price-per-gpu-hour",
        type=_price,
        metavar="PRICE",
        help="price of one GPU for one hour; the output then shows the cost of every loss",
    )
    parser.add_argument(
        "--currency",
        type=_currency,
        default=CURRENCY,
        metavar="CODE",
        help=f"currency of the prices, three letters, e.g. EUR (default: {CURRENCY}); nothing is converted",
    )


def add_energy_price(parser: ArgumentParser) -> None:
    """Add `--price-per-kwh`, parsed to `arguments.price_per_kwh`."""
    parser.add_argument(
        "--price-per-kwh",
        type=_price,
        metavar="PRICE",
        help="price of one kWh; the output then shows the cost of the GPUs' recorded energy",
    )


def _price(text: str) -> float:
    refusal = ArgumentTypeError(f"{text} is not a price; give a number above 0, e.g. 2.5")
    try:
        price = float(text)
    except ValueError:
        raise refusal from None
    if not (isfinite(price) and price > 0):
        raise refusal
    return price


def _currency(text: str) -> str:
    if not (len(text) == 3 and text.isascii() and text.isalpha()):
        raise ArgumentTypeError(f"{_short(text)} is not a currency; give its three letters, e.g. EUR")
    return text.upper()


def _short(text: str) -> str:
    return repr(text) if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]!r}..."
