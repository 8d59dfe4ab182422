"""The palette's colours for the names that Grafana's legends show."""

from traincope.analysis.terms import AFTER_BUBBLE, COMPUTE, UNATTRIBUTED, exposed_transfer, exposed_wait
from traincope.palette import colour
from traincope.topology import KNOWN_AXES

IDEAL, EXTRA, BELOW_PEAK, BUBBLE = "model math (MFU)", "recomputed, redundant", "kernels below peak", "bubble"

AXES = (*KNOWN_AXES, "world")

TERM_COLOURS: dict[str, str] = {
    IDEAL: colour("ideal"),
    EXTRA: colour("redundant"),
    BELOW_PEAK: colour("kernel_inefficiency"),
    BUBBLE: colour("bubble.schedule"),
    **{part: colour(f"bubble.{part}") for part in ("schedule", "imbalance", "jitter")},
    **{term: colour(term) for term in (*COMPUTE, *AFTER_BUBBLE, UNATTRIBUTED)},
    **{term(axis): colour(term(axis)) for axis in AXES for term in (exposed_transfer, exposed_wait)},
}
"""Name in a legend -> colour, for what is part of a step."""

AXIS_COLOURS = {axis: colour(exposed_transfer(axis)) for axis in AXES}
JOB_COLOURS = {part: colour(part) for part in ("productive", "lost", "startup", "restart", "evaluation", "other")} | {
    "checkpoint_stall": colour("checkpoint_stall")
}
"""Part of the job's time -> colour."""
