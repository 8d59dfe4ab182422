"""Dashboard: which axis causes exposed communication, and is the cause the wire or a late rank?"""

from collections.abc import Iterator

from traincope.metrics.catalogue import (
    AMBIGUOUS_WAIT,
    BUS_BANDWIDTH,
    COLLECTIVE_BYTES,
    COLLECTIVE_TIMES,
    COLLECTIVE_TRANSFER,
    COLLECTIVE_WAIT,
    LEDGER,
    WALL,
)
from traincope.metrics.metric import Metric
from traincope_dashboards.panels.board import Board
from traincope_dashboards.panels.colours import AXIS_COLOURS
from traincope_dashboards.panels.panels import (
    BYTES,
    RATE,
    RATIO,
    SECONDS,
    Column,
    Panel,
    Query,
    listing,
    over_time,
    times,
)
from traincope_dashboards.panels.variables import AXIS, PANEL_NEEDS, Scopes
from traincope_dashboards.rules.recorded import EXPOSED, EXPOSED_SHARE
from traincope_dashboards.scope import Scope

_OPERATION = "{{axis}} {{op}}"
_NONE = "no collective so far"
_NO_TIMES = "no collective so far, or TRAINCOPE_METRICS_PER_RANK is off"


def _panels(scopes: Scopes) -> Iterator[Panel]:
    job, axes = scopes.job, scopes.axes
    yield over_time(
        "Exposed communication per axis",
        text=(
            "Share of step time in which compute stalls for each axis. This is the full cost of communication: "
            "hidden communication is not included. Work on the thickest axis: overlap it, send fewer bytes, or "
            "use a faster link."
        ),
        queries=[Query(expression=job.where(**AXIS).recorded(EXPOSED_SHARE), legend="{{axis}}")],
        unit=RATIO,
        colours=AXIS_COLOURS,
        stacked=True,
        if_empty=_NONE,
    )
    yield over_time(
        "Wire or late rank",
        text=(
            "The same share, split. exposed_transfer is time on the wire: overlap it or send fewer bytes. "
            "exposed_wait is waiting for the last rank to join: find that rank in Ranks and hosts, or balance "
            "the work."
        ),
        queries=[Query(expression=_by_term(axes), legend="{{term}}[{{axis}}]")],
        unit=RATIO,
        if_empty=_NONE,
    )
    yield over_time(
        "Bus bandwidth",
        text=(
            "Bus bandwidth of the latest collectives, by axis and operation, as nccl-tests count it. If it "
            "falls on all hosts, the network is congested; if on one host, check its link. Compare with the "
            "hardware's bandwidth."
        ),
        queries=[Query(expression=f"avg by (axis, op) ({axes.series_of(BUS_BANDWIDTH)})", legend=_OPERATION)],
        unit=RATE,
        if_empty=_NONE,
    )
    yield over_time(
        "Bus bandwidth of the slowest host",
        text=(
            "The lowest bus bandwidth of any host. If it is well below the mean, check that host's network "
            "card, cable and switch port; use `topk` in Explore to find the host."
        ),
        queries=[Query(expression=f"min by (axis, op) ({axes.series_of(BUS_BANDWIDTH)})", legend=_OPERATION)],
        unit=RATE,
        if_empty=_NONE,
    )
    yield over_time(
        "Transfer",
        text=(
            "Transfer time of collectives, hidden or exposed: seconds per second, summed over all ranks of the "
            "chosen hosts. If it grows and the bytes do not, the network is congested."
        ),
        queries=[_by_operation(axes, COLLECTIVE_TRANSFER)],
        if_empty=_NONE,
    )
    yield over_time(
        "Wait",
        text=(
            "Wait of collectives for their last rank, hidden or exposed: seconds per second, summed over all "
            "ranks of the chosen hosts. If it grows, the work is unequal or one rank is slow."
        ),
        queries=[_by_operation(axes, COLLECTIVE_WAIT)],
        if_empty=_NONE,
    )
    yield over_time(
        "Ambiguous waits",
        text=(
            "Part of exposed transfer that may be wait, by axis and reason: seconds per second, summed over all ranks "
            "of the chosen hosts. In a job on several hosts, switch witness copies on to separate the two while it "
            "runs; the report separates them later."
        ),
        queries=[
            Query(expression=f"sum by (axis, reason) ({axes.rate(AMBIGUOUS_WAIT)})", legend="{{axis}} {{reason}}")
        ],
        if_empty="no ambiguous wait so far",
    )
    yield over_time(
        "Bytes",
        text=(
            "Bytes per second by axis and operation, as nccl-tests count them. They are normally as constant as "
            "the steps. A change means another layout, another batch, or more tokens routed to an expert."
        ),
        queries=[_by_operation(axes, COLLECTIVE_BYTES)],
        unit=RATE,
        if_empty=_NONE,
    )
    yield over_time(
        "99th percentile of durations",
        text=(
            "The 99th percentile of collectives' durations, from call to completion. If it is far above the "
            "median in Durations, single collectives are slow, for example while a rank saves or collects "
            f"garbage. {PANEL_NEEDS}"
        ),
        queries=[Query(expression=_percentile(axes), legend=_OPERATION)],
        unit=SECONDS,
        if_empty=_NO_TIMES,
    )
    yield times(
        "Durations",
        text=(
            "Number of collectives of the chosen axes by duration; darker is more. A second band above the "
            f"first one is a slow link, or waiting. {PANEL_NEEDS}"
        ),
        buckets=f"sum by (le) ({axes.rate(COLLECTIVE_TIMES, suffix='_bucket')})",
        if_empty=_NO_TIMES,
    )
    yield listing(
        "Operations now",
        text=(
            "One row per operation and axis: wait and transfer per second, bytes and bandwidth. If wait is "
            "large and transfer small, look for the late rank before the link. Bytes per call need "
            "TRAINCOPE_METRICS_PER_RANK=on."
        ),
        keys=["axis", "op"],
        columns=_columns(axes),
        width=12,
        if_empty=_NONE,
    )


def _by_term(scope: Scope) -> str:
    terms = f"sum by (term, axis) ({scope.where(term=EXPOSED).rate(LEDGER)})"
    return f"{terms} / on () group_left sum ({scope.rate(WALL)})"


def _by_operation(scope: Scope, metric: Metric) -> Query:
    return Query(expression=f"sum by (axis, op) ({scope.rate(metric)})", legend=_OPERATION)


def _percentile(scope: Scope) -> str:
    buckets = scope.rate(COLLECTIVE_TIMES, suffix="_bucket")
    return f"histogram_quantile(0.99, sum by (le, axis, op) ({buckets}))"


def _columns(scope: Scope) -> list[Column]:
    return [
        Column(name="wait", expression=f"sum by (axis, op) ({scope.rate(COLLECTIVE_WAIT)})"),
        Column(name="transfer", expression=f"sum by (axis, op) ({scope.rate(COLLECTIVE_TRANSFER)})"),
        Column(name="bytes per second", expression=f"sum by (axis, op) ({scope.rate(COLLECTIVE_BYTES)})", unit=RATE),
        Column(name="bus bandwidth", expression=f"avg by (axis, op) ({scope.series_of(BUS_BANDWIDTH)})", unit=RATE),
        Column(
            name="bytes per call",
            expression=f"sum by (axis, op) ({scope.rate(COLLECTIVE_BYTES)})"
            f" / sum by (axis, op) ({scope.rate(COLLECTIVE_TIMES, suffix='_count')})",
            unit=BYTES,
        ),
    ]


COMMUNICATION = Board(
    uid="traincope-communication",
    title="traincope / Communication",
    about="Which mesh axis causes exposed communication, and is the cause the wire or a late rank?",
    panels=_panels,
)
