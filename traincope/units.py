"""Numbers as text with units. All results are ASCII."""

from collections.abc import Sequence

MISSING = "-"
"""Text for a missing value."""
CURRENCY = "USD"
"""Currency of a price that has no other."""

_DURATIONS = ((1, "ns"), (1_000, "us"), (1_000_000, "ms"), (1_000_000_000, "s"))
_SIZES = ((1, "B"), (1 << 10, "KiB"), (1 << 20, "MiB"), (1 << 30, "GiB"), (1 << 40, "TiB"))
_FLOPS = ((1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T"), (1e15, "P"), (1e18, "E"), (1e21, "Z"))
_SECOND_NS = 1_000_000_000
_LONG_NS = 120 * _SECOND_NS


def duration(ns: float | None) -> str:
    """Format nanoseconds with three significant digits: "12.3 ms"; from two minutes on: "3 min 20 s"."""
    if ns is None:
        return MISSING
    if ns < 0:
        return "-" + duration(-ns)
    if ns >= _LONG_NS:
        return _long_duration(round(ns / _SECOND_NS))
    factor, unit = next((step for step in _DURATIONS if _significant(ns / step[0]) < 1000), _DURATIONS[-1])
    return f"{round(ns)} ns" if unit == "ns" else f"{_digits(ns / factor)} {unit}"


def milliseconds(ns: float | None) -> str:
    """Format nanoseconds as milliseconds without a unit, for a column whose head names it."""
    return MISSING if ns is None else f"{ns / 1e6:.2f}"


def size(num_bytes: float | None) -> str:
    """Format bytes in binary units: "4.0 MiB"."""
    if num_bytes is None:
        return MISSING
    factor, unit = next((step for step in _SIZES if round(num_bytes / step[0], 1) < 1024), _SIZES[-1])
    return f"{round(num_bytes)} B" if unit == "B" else f"{num_bytes / factor:.1f} {unit}"


def gigabytes_per_second(bytes_per_second: float | None) -> str:
    """Format bytes per second as decimal GB/s without a unit, for a column whose head names it; below 0.01: "<0.01"."""
    if bytes_per_second is None:
        return MISSING
    return _digits(bytes_per_second / 1e9) if bytes_per_second >= 1e7 else "<0.01"


def flops(number: float | None, unit: str = "FLOP") -> str:
    """Format FLOPs, or with unit "FLOP/s" a rate, with three significant digits: "1.23 TFLOP"."""
    if number is None:
        return MISSING
    if _significant(number) < 1000:
        return f"{round(number)} {unit}"
    factor, prefix = next((step for step in _FLOPS if _significant(number / step[0]) < 1000), _FLOPS[-1])
    return f"{_digits(number / factor)} {prefix}{unit}"


def share(ratio: float | None) -> str:
    """Format a ratio in percent: "21.3 %". A tiny positive ratio is "<0.1 %", a tiny negative ratio "0.0 %"."""
    if ratio is None:
        return MISSING
    if 0 < abs(ratio) < 0.0005:
        return "<0.1 %" if ratio > 0 else "0.0 %"
    return f"{100 * ratio:.1f} %"


def count(number: int | None, noun: str = "") -> str:
    """Format an integer with separators, and its noun as singular or plural: "1 step", "1,200 steps"."""
    if number is None:
        return MISSING
    return f"{number:,}" if not noun else f"{number:,} {noun}{'' if number == 1 else 's'}"


def rank_hours(hours: float | None) -> str:
    """Format hours without a unit: "1,234.5"; below 0.1: "0.012"."""
    if hours is None:
        return MISSING
    return f"{hours:,.1f}" if abs(hours) >= 0.1 or hours == 0 else f"{hours:.2g}"


def money(amount: float | None, currency: str | None = None) -> str:
    """Format an amount of money: "1,234.50 USD"; below 0.01: "0.0012 USD". Leave out a currency that the head names."""
    if amount is None:
        return MISSING
    digits = f"{amount:,.2f}" if abs(amount) >= 0.01 or amount == 0 else f"{amount:.2g}"
    return f"{digits} {currency}" if currency else digits


def numbers(values: Sequence[int], noun: str = "") -> str:
    """Format ranks or steps with ranges of three or more: "0, 2-5, 9"; with noun: "ranks 0, 2-5, 9"."""
    runs: list[list[int]] = []
    for value in sorted(set(values)):
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    drawn = ", ".join(_run(run) for run in runs)
    return f"{noun}{'' if len(set(values)) == 1 else 's'} {drawn}" if noun else drawn


def ranges(ends: Sequence[Sequence[int]], noun: str, *, max_ranges: int) -> str:
    """Format up to `max_ranges` ranges [first, last]: "step 7", "steps 61-1361, 1400", "steps 0-2, 5, ..."."""
    shown = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ends[:max_ranges])
    return f"{noun}{'' if shown.isdecimal() else 's'} {shown}{', ...' if len(ends) > max_ranges else ''}"


def _run(run: list[int]) -> str:
    return f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run))


def _long_duration(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def _significant(value: float) -> float:
    return float(f"{value:.3g}")


def _digits(value: float) -> str:
    """Format a value of at least 0.01 with three significant digits and no exponent."""
    rounded = _significant(value)
    return f"{value:.{2 if rounded < 10 else 1 if rounded < 100 else 0}f}"
