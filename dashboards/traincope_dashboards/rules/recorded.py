"""Recording rules: numbers of a whole run, so that a panel over 10,000 ranks needs only a few series.

Alerts query them by name; so do dashboards built with `--recorded`.
"""

from functools import partial

from traincope.metrics.catalogue import (
    BUBBLE,
    BUBBLE_THEORY,
    GOODPUT,
    HFU,
    JOB_TIME,
    LEDGER,
    MFU,
    MFU_PAPER,
    OWN_TIME,
    STEP_DURATION,
    STRAGGLER_WAIT,
    TOKENS,
    WALL,
)
from traincope.metrics.metric import Metric
from traincope_dashboards.scope import Recorded, Scope

ALIVE = '="alive"'
PRODUCTIVE = '="productive"'
EXPOSED = '=~"exposed_transfer|exposed_wait"'
MODEL_WORK = '=~"forward|backward|recompute"'
"""Ledger terms that execute the model's FLOPs."""


def _over_nodes(metric: Metric, *, operation: str) -> Recorded:
    """A gauge that every node reports, aggregated over the nodes."""
    return Recorded(
        name=f"run:{metric.prometheus}:{operation}",
        labels=("run",),
        expression=lambda scope: f"{operation} by (run) ({scope.series_of(metric)})",
    )


def _share_of_steps(scope: Scope, *, by: str, per: str) -> str:
    """Time in ledger terms divided by step time, per labels `by`, which include the labels `per`."""
    terms, steps = scope.rate(LEDGER), scope.rate(WALL)
    many_to_one = "" if by == per else " group_left"
    return f"sum by ({by}) ({terms}) / on ({per}){many_to_one} sum by ({per}) ({steps})"


def _blame(scope: Scope) -> str:
    """Share of each other rank's time on the node that it waits for this rank."""
    others = f"(count by (run, host) ({scope.without('rank').series_of(STEP_DURATION)}) > 1) - 1"
    return f"sum by (run, host, rank) ({scope.rate(STRAGGLER_WAIT)}) / on (run, host) group_left () ({others})"


def _rolling_goodput(scope: Scope, window: str) -> str:
    """Productive share of the time by which all parts grew in the window. Steps that a restart lost count in the window
    in which they are found to be lost, so a short window may be negative.
    """
    parts = f"max by (run, part) (delta({scope.series_of(JOB_TIME)}[{window}]))"
    productive = f"max by (run) (delta({scope.series_of(JOB_TIME, part=PRODUCTIVE)}[{window}]))"
    return f"{productive} / on (run) (sum by (run) ({parts}) > 0)"


STEP_MEDIAN = Recorded(
    name=f"run:{STEP_DURATION.prometheus}:median",
    labels=("run",),
    expression=lambda scope: f"quantile by (run) (0.5, {scope.series_of(STEP_DURATION)})",
)
STEP_SLOWEST = _over_nodes(STEP_DURATION, operation="max")
MFU_MEAN = _over_nodes(MFU, operation="avg")
MFU_PAPER_MEAN = _over_nodes(MFU_PAPER, operation="avg")
HFU_MEAN = _over_nodes(HFU, operation="avg")
BUBBLE_MEAN = _over_nodes(BUBBLE, operation="avg")
BUBBLE_BY_THEORY = _over_nodes(BUBBLE_THEORY, operation="max")
GOODPUT_MEAN = _over_nodes(GOODPUT, operation="avg")
GOODPUT_HOUR, GOODPUT_DAY = (
    Recorded(
        name=f"run:{GOODPUT.prometheus}:last_{window}",
        labels=("run",),
        expression=partial(_rolling_goodput, window=window),
    )
    for window in ("1h", "1d")
)
TOKEN_RATE = Recorded(
    name=f"run:{TOKENS.prometheus}:rate",
    labels=("run",),
    expression=lambda scope: f"sum by (run) ({scope.rate(TOKENS)})",
)
TERM_SHARE = Recorded(
    name="run_term_axis:traincope_ledger_share:ratio",
    labels=("run", "term", "axis"),
    expression=lambda scope: _share_of_steps(scope, by="run, term, axis", per="run"),
)
MODEL_WORK_SHARE = Recorded(
    name="run:traincope_model_work_share:ratio",
    labels=("run",),
    expression=lambda scope: _share_of_steps(scope.where(term=MODEL_WORK), by="run", per="run"),
)
EXPOSED_SHARE = Recorded(
    name="run_axis:traincope_exposed_share:ratio",
    labels=("run", "axis"),
    expression=lambda scope: _share_of_steps(scope.where(term=EXPOSED), by="run, axis", per="run"),
)
HOST_EXPOSED_SHARE = Recorded(
    name="run_host:traincope_exposed_share:ratio",
    labels=("run", "host"),
    expression=lambda scope: _share_of_steps(scope.where(term=EXPOSED), by="run, host", per="run, host"),
)
BLAME = Recorded(
    name="run_host_rank:traincope_blame:ratio",
    labels=("run", "host", "rank"),
    expression=_blame,
)
RECORDER_SHARE = Recorded(
    name="run:traincope_recorder_share:ratio",
    labels=("run",),
    expression=lambda scope: f"sum by (run) ({scope.rate(OWN_TIME)}) / sum by (run) ({scope.rate(WALL)})",
)

RECORDED = tuple(value for value in list(globals().values()) if isinstance(value, Recorded))
"""All recording rules, in the order of this file."""
