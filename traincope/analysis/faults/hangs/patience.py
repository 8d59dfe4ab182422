"""How long a run may stand still before that is a hang, learned from its own steps."""

from collections.abc import Sequence

from traincope.timeline import Timeline

FLOOR_NS = 5_000_000_000
MULTIPLE = 3
"""Times the longest step so far."""
UNLEARNED_NS = 600_000_000_000
"""Time for first steps, compilations, checkpoints and evaluations, whose usual length is not known."""
UNSEEN_NS = 60_000_000_000
"""Least time without any stack or recorded wait: the records alone then show nothing but silence."""
MIN_STEPS = 3
"""Fewest complete steps to learn from."""


def patience_ns(timeline: Timeline) -> int:
    """Longest time without progress that is not a hang. The first step, which also prepares, teaches nothing.

    Imported dumps have no steps. They were written because the job stood still.
    """
    if timeline.run.info.imported:
        return 0
    return patience_of([step.length_ns for rank in timeline.ranks for step in rank.steps[1:]])


def patience_of(steps_ns: Sequence[int]) -> int:
    """The same from the times of the steps so far, the first one left out."""
    return max(FLOOR_NS, MULTIPLE * max(steps_ns)) if len(steps_ns) >= MIN_STEPS else UNLEARNED_NS
