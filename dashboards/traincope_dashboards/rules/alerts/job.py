"""Alerts about the job's results: logged values, checkpoints, goodput."""

from collections.abc import Iterator

from traincope.analysis.faults.faults import FaultKind
from traincope.metrics.catalogue import CHECKPOINT_AGE, FAULTS, JOB_TIME, RANKS
from traincope_dashboards.rules.alert import Alert, Rules, Severity
from traincope_dashboards.rules.recorded import ALIVE, GOODPUT_MEAN

_WHOSE = ("run", "host", "rank")
_STATE = (FaultKind.CORRUPTED_STATE, FaultKind.REPLICAS_DIFFER)
_DATA = (FaultKind.DATA_FED_AGAIN, FaultKind.DATA_SKIPPED)


def alerts(rules: Rules) -> Iterator[Alert]:
    scope, limits = rules.all, rules.limits
    yield Alert(
        name="NotFinite",
        expression=rules.new_by(FAULTS, by=_WHOSE, kind=f'="{FaultKind.NOT_FINITE}"'),
        hold_seconds=0,
        severity=Severity.CRITICAL,
        summary="{{ $labels.run }} logged NaN or infinity",
        description="Rank {{ $labels.rank }} of {{ $labels.run }} on {{ $labels.host }} logged a value that is not"
        " finite.",
        board="traincope-faults",
    )
    yield Alert(
        name="Spike",
        expression=rules.new_by(FAULTS, by=_WHOSE, kind=f'="{FaultKind.SPIKE}"'),
        hold_seconds=0,
        severity=Severity.WARNING,
        summary="a logged value of {{ $labels.run }} spiked",
        description=(
            "Rank {{ $labels.rank }} of {{ $labels.run }} on {{ $labels.host }} logged a value far above "
            "its earlier values."
        ),
        board="traincope-faults",
    )
    yield Alert(
        name="BadState",
        expression=rules.new_by(FAULTS, by=(*_WHOSE, "kind"), kind=f'=~"{"|".join(_STATE)}"'),
        hold_seconds=0,
        severity=Severity.CRITICAL,
        summary="the state of {{ $labels.run }} is bad: {{ $labels.kind }}",
        description=(
            "Parameters or optimizer state of rank {{ $labels.rank }} of {{ $labels.run }} on {{ $labels.host }} are "
            "not what they must be: {{ $labels.kind }}."
        ),
        board="traincope-faults",
    )
    yield Alert(
        name="DataOrder",
        expression=rules.new_by(FAULTS, by=(*_WHOSE, "kind"), kind=f'=~"{"|".join(_DATA)}"'),
        hold_seconds=0,
        severity=Severity.CRITICAL,
        summary="{{ $labels.run }} continued with the wrong data: {{ $labels.kind }}",
        description=(
            "After a restart, rank {{ $labels.rank }} of {{ $labels.run }} on {{ $labels.host }} did not continue with "
            "the batch that follows its state: {{ $labels.kind }}."
        ),
        board="traincope-faults",
    )
    yield Alert(
        name="CheckpointFailed",
        expression=rules.new_by(FAULTS, by=_WHOSE, kind=f'="{FaultKind.CHECKPOINT_FAILED}"'),
        hold_seconds=0,
        severity=Severity.CRITICAL,
        summary="a checkpoint of {{ $labels.run }} failed",
        description=(
            "Rank {{ $labels.rank }} of {{ $labels.run }} on {{ $labels.host }} could not complete a checkpoint."
        ),
        board="traincope-faults",
    )
    yield Alert(
        name="CheckpointOverdue",
        # Nodes that save nothing themselves have no checkpoint age, and an ended job needs no checkpoint.
        expression=f"min by (run) ({scope.series_of(CHECKPOINT_AGE)}) > {limits.checkpoint_seconds:g}"
        f" and on (run) sum by (run) ({scope.series_of(RANKS, state=ALIVE)}) > 0",
        hold_seconds=300,
        severity=Severity.WARNING,
        summary="{{ $labels.run }} has not saved a checkpoint for {{ $value | humanizeDuration }}",
        description=(
            "The last checkpoint of {{ $labels.run }} is {{ $value | humanizeDuration }} old: a crash "
            "now would lose that much time."
        ),
        board="traincope-faults",
    )
    goodput = rules.recorded(GOODPUT_MEAN)
    yield Alert(
        name="GoodputLow",
        expression=f"{goodput} < {limits.goodput_ratio:g}"
        f" and on (run) sum by (run) (max by (run, part) ({scope.series_of(JOB_TIME)}))"
        f" > {limits.goodput_after_seconds:g}",
        hold_seconds=900,
        severity=Severity.WARNING,
        summary="goodput of {{ $labels.run }} is {{ $value | humanizePercentage }}",
        description=(
            "Only {{ $value | humanizePercentage }} of the time of {{ $labels.run }} was productive; "
            "startup, restarts, lost steps and checkpoints took the rest."
        ),
        board="traincope-faults",
    )
