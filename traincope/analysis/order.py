"""What came first, as far as the clocks of those who wrote it down tell."""

from traincope.timeline import Timeline, error_between_ns

WALL_CLOCKS_NS = 1_000_000_000
"""How far hosts' wall clocks are taken to be apart where nothing ties them better. Any cluster keeps them closer, and
nothing proves it."""


def doubt_ns(timeline: Timeline, first: int, second: int) -> int:
    """How much earlier than another rank's an instant of one has to look, to be earlier."""
    clocks = [clock for clock in timeline.clocks if clock.rank in (first, second)]
    error_ns = error_between_ns(clocks) if len(clocks) == 2 else None
    return WALL_CLOCKS_NS if error_ns is None else error_ns
