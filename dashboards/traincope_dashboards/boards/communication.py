"""Which axis holds up compute, and is it the wire or a late rank?"""

from collections.abc import Iterator

from traincope.metrics import (
    BUS_BANDWIDTH,
    COLLECTIVE_BYTES,
    COLLECTIVE_TIMES,
    COLLECTIVE_TRANSFER,
    COLLECTIVE_WAIT,
    LEDGER,
    WALL,
    Metric,
)
from traincope_dashboards.board import Board
from traincope_dashboards.colours import AXIS_COLOURS
from traincope_dashboards.panels import (
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
from traincope_dashboards.recorded import EXPOSED, EXPOSED_SHARE
from traincope_dashboards.scope import Scope
from traincope_dashboards.variables import AXIS, Scopes

_OPERATION = "{{axis}} {{op}}"


def _panels(scopes: Scopes) -> Iterator[Panel]:
    job, axes = scopes.job, scopes.axes
    yield over_time(
        "Exposed communication per axis",
        how="Share of step time in which compute stood still for each axis. It is all that communication costs: what"
        " is hidden behind compute is not in it. The thickest axis is the one to overlap, shrink or move to a"
        " faster link.",
        queries=[Query(expression=job.where(**AXIS).recorded(EXPOSED_SHARE), legend="{{axis}}")],
        unit=RATIO,
        colours=AXIS_COLOURS,
        stacked=True,
    )
    yield over_time(
        "Wire or late rank",
        how="The same, split: exposed_transfer is the wire's time (overlap it, send fewer bytes), exposed_wait is"
        " waiting for the last rank to join (find it in Ranks and hosts; even out the work).",
        queries=[Query(expression=_by_term(axes), legend="{{term}}[{{axis}}]")],
        unit=RATIO,
    )
    yield over_time(
        "Bus bandwidth",
        how="Of the latest collectives by axis and operation, from their transfer times as nccl-tests count it."
        " Falling on all hosts: the network is congested; on one: its link. Compare with the hardware's own.",
        queries=[Query(expression=f"avg by (axis, op) ({axes.of(BUS_BANDWIDTH)})", legend=_OPERATION)],
        unit=RATE,
    )
    yield over_time(
        "Bus bandwidth of the slowest host",
        how="As before, of the host where it is least. Well below the mean: that host's network card, cable or"
        " switch port; `topk` it in Explore to name it.",
        queries=[Query(expression=f"min by (axis, op) ({axes.of(BUS_BANDWIDTH)})", legend=_OPERATION)],
        unit=RATE,
    )
    yield over_time(
        "Transfer",
        how="Time that collectives were on the wire, hidden or not, seconds a second over all ranks of the chosen"
        " hosts. Growing while the bytes do not: congestion.",
        queries=[_by_operation(axes, COLLECTIVE_TRANSFER)],
    )
    yield over_time(
        "Wait",
        how="Time that collectives waited for their last rank, hidden or not, seconds a second over all ranks of the"
        " chosen hosts. Growing: ranks do unequal work, or one is slow.",
        queries=[_by_operation(axes, COLLECTIVE_WAIT)],
    )
    yield over_time(
        "Bytes",
        how="Bytes a second by axis and operation, as nccl-tests count them. It should be as constant as the steps:"
        " a change means another layout, batch, or more tokens routed to an expert.",
        queries=[_by_operation(axes, COLLECTIVE_BYTES)],
        unit=RATE,
    )
    yield over_time(
        "Slowest of a hundred",
        how="The 99th percentile of collectives' durations, from the call to completion. Far above the median of"
        " Durations: single slow ones, such as a rank that saves or collects garbage.",
        queries=[Query(expression=_percentile(axes), legend=_OPERATION)],
        unit=SECONDS,
    )
    yield times(
        "Durations",
        how="How many collectives of the chosen axes took how long; darker is more. A second band above is a slow"
        " link, or waiting.",
        buckets=f"sum by (le) ({axes.rate(COLLECTIVE_TIMES, suffix='_bucket')})",
    )
    yield listing(
        "Operations now",
        how="A row for each operation on an axis: its part of a rank's time on the wire and waiting, what it moves and"
        " how fast. Large wait beside small transfer: look for the late rank before the link.",
        keys=["axis", "op"],
        columns=_columns(axes),
        width=12,
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
        Column(name="waiting", expression=f"sum by (axis, op) ({scope.rate(COLLECTIVE_WAIT)})"),
        Column(name="on the wire", expression=f"sum by (axis, op) ({scope.rate(COLLECTIVE_TRANSFER)})"),
        Column(name="bytes a second", expression=f"sum by (axis, op) ({scope.rate(COLLECTIVE_BYTES)})", unit=RATE),
        Column(name="bus bandwidth", expression=f"avg by (axis, op) ({scope.of(BUS_BANDWIDTH)})", unit=RATE),
        Column(
            name="bytes each",
            expression=f"sum by (axis, op) ({scope.rate(COLLECTIVE_BYTES)})"
            f" / sum by (axis, op) ({scope.rate(COLLECTIVE_TIMES, suffix='_count')})",
            unit=BYTES,
        ),
    ]


COMMUNICATION = Board(
    uid="traincope-communication",
    title="traincope / Communication",
    about="Which mesh axis holds up compute, and is it the wire or a late rank?",
    panels=_panels,
)
