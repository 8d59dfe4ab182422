"""Ticks of a time axis, from days down to nanoseconds."""

from dataclasses import dataclass

MAX_TICKS = 9
FINE = 1e-3
"""A window shorter than this share of the time before it counts from its own begin."""
_UNITS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"), (1, "ns"))
_STEPS = (1, 2, 5)
_LONG_STEPS_NS = tuple(seconds * 1_000_000_000 for seconds in (10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200))
_HOUR_NS = 3_600_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticks:
    """Positions (ns since the run's begin) and texts of the ticks."""

    at_ns: tuple[int, ...]
    texts: tuple[str, ...]
    since_ns: int
    """Zero of the texts."""


def ticks(begin_ns: int, end_ns: int) -> Ticks:
    """Round ticks in [begin, end), at most MOST_TICKS."""
    step_ns = _step(max(end_ns - begin_ns, 1))
    first = -(-begin_ns // step_ns) * step_ns
    at = tuple(range(first, end_ns, step_ns)) or (begin_ns,)
    fine = end_ns - begin_ns < FINE * begin_ns
    since_ns = at[0] if fine else 0
    texts = tuple(("+" if fine and ns > since_ns else "") + instant(ns - since_ns, step_ns=step_ns) for ns in at)
    return Ticks(at_ns=at, texts=texts, since_ns=since_ns)


def instant(ns: int, *, step_ns: int) -> str:
    """`ns` in the unit that steps of `step_ns` are whole in: "1.25 s", "340 µs"; from two minutes on "0:03:20"."""
    if step_ns >= 1_000_000_000 and ns >= 120_000_000_000:
        minutes, seconds = divmod(ns // 1_000_000_000, 60)
        return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"
    factor, unit = next((pair for pair in _UNITS if max(step_ns, abs(ns)) >= pair[0]), _UNITS[-1])
    digits, rest = 0, step_ns
    while rest % factor:
        digits, rest = digits + 1, rest * 10
    return f"{ns / factor:.{digits}f} {unit}" if ns else "0"


def _step(length_ns: int) -> int:
    """The shortest round step of which at most MOST_TICKS lie in the length."""
    minimum_ns = max(-(-length_ns // MAX_TICKS), 1)
    if minimum_ns > _STEPS[-1] * 1_000_000_000:
        long = next((step for step in _LONG_STEPS_NS if step >= minimum_ns), None)
        return long or -(-minimum_ns // (6 * _HOUR_NS)) * 6 * _HOUR_NS
    power = int(10 ** (len(str(minimum_ns)) - 1))
    return next(power * step for step in (*_STEPS, 10) if power * step >= minimum_ns)
