"""What is recorded of a run as a whole, so that looking at 10,000 ranks costs a handful of series.

The alerts ask these by name, and so do dashboards that are built with `--recorded`.
"""

from traincope.metrics import (
    BUBBLE,
    BUBBLE_THEORY,
    CAUSED_WAIT,
    GOODPUT,
    HFU,
    LEDGER,
    MFU,
    MFU_PAPER,
    OWN_TIME,
    STEP_DURATION,
    STEPS,
    TOKENS,
    WALL,
    Metric,
)
from traincope_dashboards.scope import Recorded, Scope

ALIVE = '="alive"'
EXPOSED = '=~"exposed_transfer|exposed_wait"'
MODEL_WORK = '=~"forward|backward|recompute"'
"""Ledger terms in which the model's FLOPs are executed."""


def _over_nodes(metric: Metric, *, operation: str) -> Recorded:
    """Of a gauge that every node tells for itself."""
    return Recorded(
        name=f"run:{metric.prometheus}:{operation}",
        labels=("run",),
        expression=lambda scope: f"{operation} by (run) ({scope.of(metric)})",
    )


def _share_of_steps(scope: Scope, *, by: str, of: str) -> str:
    """Seconds in ledger terms over seconds of steps, both a second; `by` holds the labels `of`."""
    terms, steps = scope.rate(LEDGER), scope.rate(WALL)
    many_to_one = "" if by == of else " group_left"
    return f"sum by ({by}) ({terms}) / on ({of}){many_to_one} sum by ({of}) ({steps})"


def _blame(scope: Scope) -> str:
    """Of each other rank's time on the node, the part it stood still because of this rank."""
    others = f"(count by (run, host) ({scope.without('rank').of(STEPS)}) > 1) - 1"
    return f"sum by (run, host, rank) ({scope.rate(CAUSED_WAIT)}) / on (run, host) group_left () ({others})"


STEP_MEDIAN = Recorded(
    name=f"run:{STEP_DURATION.prometheus}:median",
    labels=("run",),
    expression=lambda scope: f"quantile by (run) (0.5, {scope.of(STEP_DURATION)})",
)
STEP_SLOWEST = _over_nodes(STEP_DURATION, operation="max")
MFU_MEAN = _over_nodes(MFU, operation="avg")
MFU_PAPER_MEAN = _over_nodes(MFU_PAPER, operation="avg")
HFU_MEAN = _over_nodes(HFU, operation="avg")
BUBBLE_MEAN = _over_nodes(BUBBLE, operation="avg")
BUBBLE_BY_THEORY = _over_nodes(BUBBLE_THEORY, operation="max")
GOODPUT_MEAN = _over_nodes(GOODPUT, operation="avg")
TOKEN_RATE = Recorded(
    name=f"run:{TOKENS.prometheus}:rate",
    labels=("run",),
    expression=lambda scope: f"sum by (run) ({scope.rate(TOKENS)})",
)
TERM_SHARE = Recorded(
    name="run_term_axis:traincope_ledger_share:ratio",
    labels=("run", "term", "axis"),
    expression=lambda scope: _share_of_steps(scope, by="run, term, axis", of="run"),
)
MODEL_WORK_SHARE = Recorded(
    name="run:traincope_model_work_share:ratio",
    labels=("run",),
    expression=lambda scope: _share_of_steps(scope.where(term=MODEL_WORK), by="run", of="run"),
)
EXPOSED_SHARE = Recorded(
    name="run_axis:traincope_exposed_share:ratio",
    labels=("run", "axis"),
    expression=lambda scope: _share_of_steps(scope.where(term=EXPOSED), by="run, axis", of="run"),
)
HOST_EXPOSED_SHARE = Recorded(
    name="run_host:traincope_exposed_share:ratio",
    labels=("run", "host"),
    expression=lambda scope: _share_of_steps(scope.where(term=EXPOSED), by="run, host", of="run, host"),
)
BLAME = Recorded(
    name="run_host_rank:traincope_blame:ratio",
    labels=("run", "host", "rank"),
    expression=_blame,
)
OWN_SHARE = Recorded(
    name="run:traincope_recorder_share:ratio",
    labels=("run",),
    expression=lambda scope: f"sum by (run) ({scope.rate(OWN_TIME)}) / sum by (run) ({scope.rate(WALL)})",
)

RECORDED = tuple(value for value in list(globals().values()) if isinstance(value, Recorded))
"""In the order of this file."""
