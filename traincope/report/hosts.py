"""How far apart the clocks may be of what stands side by side."""

from traincope.report.schema import RankClock
from traincope.units import duration


def across_hosts(clocks: list[RankClock]) -> str:
    """As words that follow, e.g. " across hosts within 80.0 us"; empty where one clock has timed all.

    So it is where a bound is not known: then nothing is compared across hosts.
    """
    bounds = {clock["bound_ns"] for clock in clocks}
    known = [bound for bound in bounds if bound is not None]
    if len(known) < len(bounds) or not any(known):
        return ""
    return f" across hosts within {duration(max(known))}"
