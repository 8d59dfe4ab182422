"""Alerts about a job that is slower than before, or slower than planned."""

from collections.abc import Iterator

from traincope_dashboards.rules.alert import Alert, Rules, Severity
from traincope_dashboards.rules.recorded import (
    BLAME,
    BUBBLE_BY_THEORY,
    BUBBLE_MEAN,
    EXPOSED_SHARE,
    HOST_EXPOSED_SHARE,
    MFU_MEAN,
)


def alerts(rules: Rules) -> Iterator[Alert]:
    limits = rules.limits
    blame, host_exposed = rules.recorded(BLAME), rules.recorded(HOST_EXPOSED_SHARE)
    yield Alert(
        name="Straggler",
        # One rank with more than half of its host's straggler wait. Otherwise all ranks wait for all others: imbalance.
        expression=f"{blame} > {limits.straggler_ratio:g}"
        f" and {blame} / on (run, host) group_left sum by (run, host) ({blame}) > 0.5",
        hold_seconds=300,
        severity=Severity.WARNING,
        summary="rank {{ $labels.rank }} holds up {{ $labels.run }}",
        description=(
            "Each other rank on {{ $labels.host }} waits {{ $value | humanizePercentage }} of its time "
            "because rank {{ $labels.rank }} of {{ $labels.run }} joins collectives last."
        ),
        board="traincope-ranks",
    )
    yield Alert(
        name="SlowHost",
        expression=f"avg by (run) ({host_exposed}) - on (run) group_right {host_exposed} > {limits.slow_host_ratio:g}",
        hold_seconds=600,
        severity=Severity.WARNING,
        summary="{{ $labels.host }} holds up {{ $labels.run }}",
        description=(
            "Ranks on {{ $labels.host }} stall {{ $value | humanizePercentage }} of step time less than "
            "the mean of {{ $labels.run }}: the others wait for them."
        ),
        board="traincope-ranks",
    )
    mfu, usual_mfu = rules.recorded(MFU_MEAN), rules.usual(MFU_MEAN)
    yield Alert(
        name="MfuDrop",
        expression=f"1 - {mfu} / {usual_mfu} > {limits.mfu_drop_ratio:g}",
        hold_seconds=600,
        severity=Severity.WARNING,
        summary="MFU of {{ $labels.run }} fell by {{ $value | humanizePercentage }}",
        description=(
            "MFU of {{ $labels.run }} is {{ $value | humanizePercentage }} below its usual value; it is "
            f"now {_looked_up(mfu)}."
        ),
        board="traincope-ledger",
    )
    exposed, usual_exposed = rules.recorded(EXPOSED_SHARE), rules.usual(EXPOSED_SHARE)
    yield Alert(
        name="ExposedCommunicationUp",
        expression=f"{exposed} - {usual_exposed} > {limits.exposed_rise_ratio:g}",
        hold_seconds=600,
        severity=Severity.WARNING,
        summary="communication on {{ $labels.axis }} holds up {{ $labels.run }} more than usual",
        description=(
            "Exposed communication on axis {{ $labels.axis }} of {{ $labels.run }} takes"
            " {{ $value | humanizePercentage }} more of step time than usual."
        ),
        board="traincope-communication",
    )
    bubble, theory = rules.recorded(BUBBLE_MEAN), rules.recorded(BUBBLE_BY_THEORY)
    yield Alert(
        name="BubbleOverPlan",
        expression=f"{bubble} > on (run) {limits.bubble_ratio:g} * {theory} + {limits.bubble_margin_ratio:g}",
        hold_seconds=600,
        severity=Severity.WARNING,
        summary="the pipeline of {{ $labels.run }} idles more than planned",
        description=(
            "Stages of {{ $labels.run }} idle {{ $value | humanizePercentage }} of step time; the "
            f"schedule's theoretical bubble is {_looked_up(theory)}."
        ),
        board="traincope-pipeline",
    )


def _looked_up(series: str) -> str:
    """Template that queries another series of the same run."""
    query = 'printf "' + series + '{run=%q}" $labels.run | query'
    return "{{ with " + query + " }}{{ . | first | value | humanizePercentage }}{{ end }}"
