"""Alerts about the recorder and its agents: whether the shown numbers are complete and up to date."""

from collections.abc import Iterator

from traincope.metrics.catalogue import AGENT_LAG, DROPPED, RUN_INFO
from traincope_dashboards.rules.alert import Alert, Rules, Severity
from traincope_dashboards.rules.recorded import RECORDER_SHARE

REMEMBERED = "1h"
"""How long the labels of a target that is down are remembered."""


def alerts(rules: Rules) -> Iterator[Alert]:
    scope, limits = rules.all, rules.limits
    known = f"max by (run, host, instance) (last_over_time({scope.series_of(RUN_INFO)}[{REMEMBERED}]))"
    yield Alert(
        name="AgentDown",
        # An agent that ends removes its target, so it is neither up nor down.
        expression=f"{known} and on (instance) up == 0",
        hold_seconds=120,
        severity=Severity.WARNING,
        summary="the agent on {{ $labels.host }} does not answer",
        description="The agent of {{ $labels.run }} on {{ $labels.host }} cannot be scraped at {{ $labels.instance }}:"
        " it was killed, or {{ $labels.host }} is down.",
        board="traincope-recorder",
    )
    yield Alert(
        name="AgentLate",
        expression=f"max by (run, host) ({scope.series_of(AGENT_LAG)}) > {limits.agent_lag_seconds:g}",
        hold_seconds=120,
        severity=Severity.WARNING,
        summary="numbers from {{ $labels.host }} are old",
        description=(
            "The agent on {{ $labels.host }} last read its ranks of {{ $labels.run }} {{ $value | humanizeDuration }} "
            "ago; the shown numbers are as old."
        ),
        board="traincope-recorder",
    )
    yield Alert(
        name="RecorderDropping",
        expression=rules.grown_by(DROPPED, by=("run", "host")),
        hold_seconds=0,
        severity=Severity.WARNING,
        summary="events of {{ $labels.run }} are dropped on {{ $labels.host }}",
        description=(
            "{{ $value | humanize }} events of {{ $labels.run }} were dropped on {{ $labels.host }} "
            "recently; the numbers of those steps are too low."
        ),
        board="traincope-recorder",
    )
    yield Alert(
        name="RecorderCost",
        expression=f"{rules.recorded(RECORDER_SHARE)} > {limits.recorder_ratio:g}",
        hold_seconds=600,
        severity=Severity.INFO,
        summary="recording costs {{ $value | humanizePercentage }} of {{ $labels.run }}",
        description="The recorder takes {{ $value | humanizePercentage }} of the step time of {{ $labels.run }}.",
        board="traincope-recorder",
    )
