"""Can one still believe what is shown?"""

from collections.abc import Iterator

from traincope.metrics import AGENT_LAG, DROPPED, RUN_INFO
from traincope_dashboards.alert import Alert, Rules, Severity
from traincope_dashboards.recorded import OWN_SHARE

REMEMBERED = "1h"
"""For so long it is known whose agent a target was."""


def alerts(rules: Rules) -> Iterator[Alert]:
    scope, limits = rules.all, rules.limits
    known = f"max by (run, host, instance) (last_over_time({scope.of(RUN_INFO)}[{REMEMBERED}]))"
    yield Alert(
        name="AgentDown",
        # An agent that ends takes its target away, and then nothing is up or down.
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
        expression=f"max by (run, host) ({scope.of(AGENT_LAG)}) > {limits.agent_lag_seconds:g}",
        hold_seconds=120,
        severity=Severity.WARNING,
        summary="numbers from {{ $labels.host }} are old",
        description="The agent on {{ $labels.host }} last looked at its ranks of {{ $labels.run }}"
        " {{ $value | humanizeDuration }} ago: what is shown of them is as old.",
        board="traincope-recorder",
    )
    yield Alert(
        name="RecorderDropping",
        expression=rules.grown(DROPPED, by=("run", "host")),
        hold_seconds=0,
        severity=Severity.WARNING,
        summary="records of {{ $labels.run }} are lost on {{ $labels.host }}",
        description="{{ $value | humanize }} records of {{ $labels.run }} were lost on {{ $labels.host }} lately;"
        " numbers of those steps are too low.",
        board="traincope-recorder",
    )
    yield Alert(
        name="RecorderCost",
        expression=f"{rules.recorded(OWN_SHARE)} > {limits.recorder_ratio:g}",
        hold_seconds=600,
        severity=Severity.INFO,
        summary="recording costs {{ $value | humanizePercentage }} of {{ $labels.run }}",
        description="The recorder takes {{ $value | humanizePercentage }} of the step time of {{ $labels.run }}.",
        board="traincope-recorder",
    )
