"""What the GPUs complain of."""

from collections.abc import Iterator

from traincope.analysis.faults import FaultKind
from traincope.metrics import FAULTS, GPU_ECC, GPU_NVLINK, GPU_THROTTLED, GPU_XID
from traincope_dashboards.alert import Alert, Rules, Severity

_GPU = ("run", "host", "gpu")
_NO_SLOWDOWN_BY_LIMIT = '!~".*power.cap.*"'
"""A GPU at its power limit is ordinary under full load."""

_LOST = f"{FaultKind.GPU_LOST}|{FaultKind.ROWS_REMAPPED}"


def alerts(rules: Rules) -> Iterator[Alert]:
    throttled = rules.all.of(GPU_THROTTLED, reason=_NO_SLOWDOWN_BY_LIMIT)
    yield Alert(
        name="GpuXid",
        expression=rules.new(GPU_XID, by=(*_GPU, "xid")),
        hold_seconds=0,
        severity=Severity.CRITICAL,
        summary="XID {{ $labels.xid }} on {{ $labels.host }} GPU {{ $labels.gpu }}",
        description="The driver reported XID {{ $labels.xid }} for GPU {{ $labels.gpu }} of {{ $labels.host }}, on"
        " which {{ $labels.run }} trains.",
        board="traincope-hardware",
    )
    yield Alert(
        name="GpuEcc",
        expression=rules.grown(GPU_ECC, by=_GPU, kind='="uncorrected"'),
        hold_seconds=0,
        severity=Severity.CRITICAL,
        summary="uncorrected ECC error on {{ $labels.host }} GPU {{ $labels.gpu }}",
        description="Memory of GPU {{ $labels.gpu }} of {{ $labels.host }}, on which {{ $labels.run }} trains, had an"
        " error that could not be corrected.",
        board="traincope-hardware",
    )
    yield Alert(
        name="GpuFault",
        expression=rules.new(FAULTS, by=("run", "host", "rank", "kind"), kind=f'=~"{_LOST}"'),
        hold_seconds=0,
        severity=Severity.CRITICAL,
        summary="{{ $labels.kind }} on {{ $labels.host }}",
        description="The GPU of rank {{ $labels.rank }} of {{ $labels.run }} on {{ $labels.host }} is to be looked at:"
        " {{ $labels.kind }}.",
        board="traincope-hardware",
    )
    yield Alert(
        name="GpuThrottled",
        expression=f"max by (run, host, gpu, reason) ({throttled}) == 1",
        hold_seconds=300,
        severity=Severity.WARNING,
        summary="{{ $labels.host }} GPU {{ $labels.gpu }} is throttled: {{ $labels.reason }}",
        description="GPU {{ $labels.gpu }} of {{ $labels.host }} is slowed down by {{ $labels.reason }}; all ranks of"
        " {{ $labels.run }} wait for it.",
        board="traincope-hardware",
    )
    yield Alert(
        name="GpuNvlink",
        expression=rules.grown(GPU_NVLINK, by=_GPU),
        hold_seconds=0,
        severity=Severity.WARNING,
        summary="NVLink errors on {{ $labels.host }} GPU {{ $labels.gpu }}",
        description="NVLinks of GPU {{ $labels.gpu }} of {{ $labels.host }}, on which {{ $labels.run }} trains, had"
        " errors lately.",
        board="traincope-hardware",
    )
