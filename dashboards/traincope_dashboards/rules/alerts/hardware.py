"""Alerts about faults of the GPUs and of the hosts' links."""

from collections.abc import Iterator

from traincope.analysis.faults.anomalies.links import MIN_RETRANSMITTED
from traincope.analysis.faults.faults import FaultKind
from traincope.metrics.catalogue import (
    FAULTS,
    GPU_ECC,
    GPU_NVLINK,
    GPU_THROTTLED,
    GPU_XID,
    LINK_ERRORS,
    LINK_TRAFFIC,
    LINK_UP,
    SLOT_WIDTH,
)
from traincope_dashboards.rules.alert import Alert, Rules, Severity

_GPU = ("run", "host", "gpu")
_LINK = ("run", "host", "port")
_NOT_LOST = '!~"link_downed|carrier_down_count|corrected errors"'
_LOST_LINK = '=~"link_downed|carrier_down_count"'
MANY_ERRORS = 1000
"""Errors within the time of recent events from which a link is worth a look."""
_BY_SHARE = '=~"retransmitted segments|retrans_pkts"'
_BYTES_OF_A_PACKET = 1500
"""Ethernet's usual maximum."""
_NO_SLOWDOWN_BY_LIMIT = '!~".*power.cap.*"'
"""Excludes the power limit, which is normal under full load."""

_LOST = f"{FaultKind.GPU_LOST}|{FaultKind.ROWS_REMAPPED}"


def alerts(rules: Rules) -> Iterator[Alert]:
    throttled = rules.all.series_of(GPU_THROTTLED, reason=_NO_SLOWDOWN_BY_LIMIT)
    yield Alert(
        name="GpuXid",
        expression=rules.new_by(GPU_XID, by=(*_GPU, "xid")),
        hold_seconds=0,
        severity=Severity.CRITICAL,
        summary="XID {{ $labels.xid }} on {{ $labels.host }} GPU {{ $labels.gpu }}",
        description=(
            "The driver reported XID {{ $labels.xid }} for GPU {{ $labels.gpu }} of {{ $labels.host }}, "
            "which trains {{ $labels.run }}."
        ),
        board="traincope-hardware",
    )
    yield Alert(
        name="GpuEcc",
        expression=rules.grown_by(GPU_ECC, by=_GPU, kind='="uncorrected"'),
        hold_seconds=0,
        severity=Severity.CRITICAL,
        summary="uncorrected ECC error on {{ $labels.host }} GPU {{ $labels.gpu }}",
        description=(
            "GPU {{ $labels.gpu }} of {{ $labels.host }}, which trains {{ $labels.run }}, had a memory "
            "error that could not be corrected."
        ),
        board="traincope-hardware",
    )
    yield Alert(
        name="GpuFault",
        expression=rules.new_by(FAULTS, by=("run", "host", "rank", "kind"), kind=f'=~"{_LOST}"'),
        hold_seconds=0,
        severity=Severity.CRITICAL,
        summary="{{ $labels.kind }} on {{ $labels.host }}",
        description="The GPU of rank {{ $labels.rank }} of {{ $labels.run }} on {{ $labels.host }} is faulty:"
        " {{ $labels.kind }}.",
        board="traincope-hardware",
    )
    yield Alert(
        name="GpuThrottled",
        expression=f"max by (run, host, gpu, reason) ({throttled}) == 1",
        hold_seconds=300,
        severity=Severity.WARNING,
        summary="{{ $labels.host }} GPU {{ $labels.gpu }} is throttled: {{ $labels.reason }}",
        description=(
            "GPU {{ $labels.gpu }} of {{ $labels.host }} is slowed down by {{ $labels.reason }}; all "
            "ranks of {{ $labels.run }} wait for it."
        ),
        board="traincope-hardware",
    )
    yield Alert(
        name="GpuNvlink",
        expression=rules.grown_by(GPU_NVLINK, by=_GPU),
        hold_seconds=0,
        severity=Severity.WARNING,
        summary="NVLink errors on {{ $labels.host }} GPU {{ $labels.gpu }}",
        description=(
            "NVLinks of GPU {{ $labels.gpu }} of {{ $labels.host }}, which trains {{ $labels.run }}, had "
            "errors recently."
        ),
        board="traincope-hardware",
    )
    yield Alert(
        name="LinkErrors",
        expression=(
            f"({rules.new_by(LINK_ERRORS, by=(*_LINK, 'kind'), kind=_NOT_LOST)}) >= {MANY_ERRORS} unless {_few(rules)}"
        ),
        hold_seconds=0,
        severity=Severity.WARNING,
        summary="{{ $labels.host }} {{ $labels.port }}: many {{ $labels.kind }}",
        description=(
            "Link {{ $labels.port }} of {{ $labels.host }}, which trains {{ $labels.run }}, recently counted "
            "{{ $value | humanize }} of {{ $labels.kind }}: collectives of all ranks may wait for it."
        ),
        board="traincope-hardware",
    )
    down = rules.all.series_of(LINK_UP)
    yield Alert(
        name="LinkDown",
        expression=(
            f"{rules.new_by(LINK_ERRORS, by=_LINK, kind=_LOST_LINK)} or (min by ({', '.join(_LINK)}) ({down}) == 0)"
        ),
        hold_seconds=0,
        severity=Severity.CRITICAL,
        summary="{{ $labels.host }} {{ $labels.port }} lost its link",
        description="Port {{ $labels.port }} of {{ $labels.host }}, which trains {{ $labels.run }}, lost its link.",
        board="traincope-hardware",
    )
    yield Alert(
        name="SlotNarrow",
        expression=f"min by (run, host, port, holds) ({rules.all.series_of(SLOT_WIDTH)}) < 1",
        hold_seconds=300,
        severity=Severity.WARNING,
        summary="{{ $labels.host }} {{ $labels.holds }} runs with too few PCIe lanes",
        description=(
            "The card with {{ $labels.holds }} in slot {{ $labels.port }} of {{ $labels.host }} has "
            "{{ $value | humanizePercentage }} of its lanes: its transfers for {{ $labels.run }} are slow."
        ),
        board="traincope-hardware",
    )


def _few(rules: Rules) -> str:
    """Series of what TCP and EFA send again on hosts that send much more: some of it is sent again anywhere."""
    again = rules.new_by(LINK_ERRORS, by=(*_LINK, "kind"), kind=_BY_SHARE)
    sent = rules.grown_by(LINK_TRAFFIC, by=("run", "host"), direction='="sent"')
    return f"(({again}) < on (run, host) group_left () ({sent}) * {MIN_RETRANSMITTED} / {_BYTES_OF_A_PACKET})"
