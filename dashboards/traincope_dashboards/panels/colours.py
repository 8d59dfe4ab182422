"""The palette's colours for the names that Grafana's legends show."""

from traincope.analysis.attribution.terms import AFTER_BUBBLE, COMPUTE, UNATTRIBUTED, exposed_transfer, exposed_wait
from traincope.palette import colour
from traincope.topology import KNOWN_AXES

IDEAL, EXTRA, INEFFICIENCY, BUBBLE = "model math (MFU)", "recomputed, redundant", "kernel inefficiency", "bubble"

AXES = (*KNOWN_AXES, "world")

TERM_COLOURS: dict[str, str] = {
    IDEAL: colour("ideal"),
    EXTRA: colour("redundant_compute"),
    INEFFICIENCY: colour("kernel_inefficiency"),
    BUBBLE: colour("bubble.schedule"),
    **{part: colour(f"bubble.{part}") for part in ("schedule", "imbalance", "jitter")},
    **{term: colour(term) for term in (*COMPUTE, *AFTER_BUBBLE, UNATTRIBUTED)},
    **{term(axis): colour(term(axis)) for axis in AXES for term in (exposed_transfer, exposed_wait)},
}
"""Legend name -> colour, for parts of a step."""

AXIS_COLOURS = {axis: colour(exposed_transfer(axis)) for axis in AXES}
JOB_COLOURS = {
    part: colour(part)
    for part in (
        *("productive", "skipped", "rolled_back", "lost", "startup", "restart"),
        *("checkpoint_stall", "evaluation", "other"),
    )
}
"""Part of the job's time -> colour."""
