"""Does the job come to something: numbers, checkpoints, goodput?"""

from collections.abc import Iterator

from traincope.analysis.faults import FaultKind
from traincope.metrics import CHECKPOINT_AGE, FAULTS, JOB_TIME, RANKS
from traincope_dashboards.alert import Alert, Rules, Severity
from traincope_dashboards.recorded import ALIVE, GOODPUT_MEAN

_WHOSE = ("run", "host", "rank")


def alerts(rules: Rules) -> Iterator[Alert]:
    scope, limits = rules.all, rules.limits
    yield Alert(
        name="NotFinite",
        expression=rules.new(FAULTS, by=_WHOSE, kind=f'="{FaultKind.NOT_FINITE}"'),
        hold_seconds=0,
        severity=Severity.CRITICAL,
        summary="{{ $labels.run }} logged NaN or infinity",
        description="Rank {{ $labels.rank }} of {{ $labels.run }} on {{ $labels.host }} logged a value that is not"
        " finite.",
        board="traincope-faults",
    )
    yield Alert(
        name="Spike",
        expression=rules.new(FAULTS, by=_WHOSE, kind=f'="{FaultKind.SPIKE}"'),
        hold_seconds=0,
        severity=Severity.WARNING,
        summary="a logged value of {{ $labels.run }} spiked",
        description="A value that rank {{ $labels.rank }} of {{ $labels.run }} on {{ $labels.host }} logs is far above"
        " what it was.",
        board="traincope-faults",
    )
    yield Alert(
        name="CheckpointFailed",
        expression=rules.new(FAULTS, by=_WHOSE, kind=f'="{FaultKind.CHECKPOINT_FAILED}"'),
        hold_seconds=0,
        severity=Severity.CRITICAL,
        summary="a checkpoint of {{ $labels.run }} failed",
        description="Rank {{ $labels.rank }} of {{ $labels.run }} on {{ $labels.host }} could not finish a checkpoint.",
        board="traincope-faults",
    )
    yield Alert(
        name="CheckpointOverdue",
        # Nodes that save nothing themselves know of no checkpoint, and a job that has ended needs none.
        expression=f"min by (run) ({scope.of(CHECKPOINT_AGE)}) > {limits.checkpoint_seconds:g}"
        f" and on (run) sum by (run) ({scope.of(RANKS, state=ALIVE)}) > 0",
        hold_seconds=300,
        severity=Severity.WARNING,
        summary="{{ $labels.run }} has not been saved for {{ $value | humanizeDuration }}",
        description="The last checkpoint of {{ $labels.run }} is {{ $value | humanizeDuration }} old: so much would be"
        " lost now.",
        board="traincope-faults",
    )
    goodput = rules.recorded(GOODPUT_MEAN)
    yield Alert(
        name="GoodputLow",
        expression=f"{goodput} < {limits.goodput_ratio:g}"
        f" and on (run) sum by (run) (max by (run, part) ({scope.of(JOB_TIME)})) > {limits.goodput_after_seconds:g}",
        hold_seconds=900,
        severity=Severity.WARNING,
        summary="goodput of {{ $labels.run }} is {{ $value | humanizePercentage }}",
        description="Only {{ $value | humanizePercentage }} of all the time of {{ $labels.run }} was steps that last;"
        " startup, restarts, lost steps and checkpoints took the rest.",
        board="traincope-faults",
    )
