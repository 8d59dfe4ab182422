"""The clock of a run on an axis, in the unit that its length asks for."""

from dataclasses import dataclass

SECOND, MINUTE, HOUR, DAY = 10**9, 60 * 10**9, 3_600 * 10**9, 86_400 * 10**9
UNITS = (("s", SECOND, 10 * MINUTE), ("min", MINUTE, 10 * HOUR), ("h", HOUR, 10 * DAY))
"""Name, ns, and the length from which on the next one reads better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """From `began_ns` on."""

    began_ns: int
    unit: str
    unit_ns: int

    def at(self, instant_ns: int) -> float:
        return self.length(instant_ns - self.began_ns)

    def length(self, ns: int) -> float:
        return ns / self.unit_ns


def clock(began_ns: int, end_ns: int) -> Clock:
    """In seconds up to ten minutes, then minutes, hours from ten on, and days from ten on."""
    length_ns = end_ns - began_ns
    unit, unit_ns = next(((unit, ns) for unit, ns, most in UNITS if length_ns < most), ("days", DAY))
    return Clock(began_ns=began_ns, unit=unit, unit_ns=unit_ns)
