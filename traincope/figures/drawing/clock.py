"""The clock of a run on an axis, in a unit that suits its length."""

from dataclasses import dataclass

SECOND, MINUTE, HOUR, DAY = 10**9, 60 * 10**9, 3_600 * 10**9, 86_400 * 10**9
UNITS = (("s", SECOND, 10 * MINUTE), ("min", MINUTE, 10 * HOUR), ("h", HOUR, 10 * DAY))
"""Unit, its ns, and the length from which on the next unit is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Time since `began_ns` in a unit."""

    began_ns: int
    unit: str
    unit_ns: int

    def at(self, instant_ns: int) -> float:
        return self.length(instant_ns - self.began_ns)

    def length(self, ns: int) -> float:
        return ns / self.unit_ns


def clock(began_ns: int, end_ns: int) -> Clock:
    """Choose the unit: seconds below 10 minutes, minutes below 10 hours, hours below 10 days, then days."""
    length_ns = end_ns - began_ns
    unit, unit_ns = next(((unit, ns) for unit, ns, limit_ns in UNITS if length_ns < limit_ns), ("days", DAY))
    return Clock(began_ns=began_ns, unit=unit, unit_ns=unit_ns)
