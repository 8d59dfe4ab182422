"""Alerts about a job that hangs or has lost ranks."""

from collections.abc import Iterator

from traincope.analysis.faults.faults import ENDS, FaultKind
from traincope.metrics.catalogue import DATA_AGE, FAULTS, RANKS, STEP_DURATION
from traincope_dashboards.rules.alert import Alert, Rules, Severity
from traincope_dashboards.rules.recorded import ALIVE

_HANGS = (FaultKind.HANG, FaultKind.MISMATCH)
_EQUALS_HANG = f'="{FaultKind.HANG}"'
_FAILURES = sorted(ENDS - {FaultKind.NO_END})

RESUMED_SECONDS = 5
"""Age of the youngest record below which a job is not called hung. The agent's verdict waits at least as long."""


def alerts(rules: Rules) -> Iterator[Alert]:
    scope, limits = rules.all, rules.limits
    age, alive = scope.series_of(DATA_AGE), scope.series_of(RANKS, state=ALIVE)
    ended = scope.series_of(RANKS, state='="gone"')
    youngest = f"min by (run) ({age})"
    # Before the first step the step time is unknown.
    patience = (
        f"clamp_min(3 * max by (run) ({scope.series_of(STEP_DURATION)}) or 0 * {youngest}, {limits.hang_seconds:g})"
    )
    silent = f"{youngest} > on (run) {patience} and on (run) sum by (run) ({alive}) > 0"
    announced = rules.new_by(FAULTS, by=("run",), kind=_EQUALS_HANG)
    yield Alert(
        name="Hang",
        # The agent's verdict has waited already: for three times the longest step. Silence is for a job without one.
        # It counts as long as no rank records again; without an age it counts in any case.
        expression=f"(({announced}) unless on (run) {youngest} < {RESUMED_SECONDS}) or ({silent})",
        hold_seconds=0,
        severity=Severity.CRITICAL,
        summary="{{ $labels.run }} hangs",
        description=(
            "{{ $labels.run }} stands still: an agent found a hang, or all ranks have written no record for "
            f"{limits.hang_seconds:g} s and for three steps, while their processes are alive."
        ),
        board="traincope-faults",
    )
    yield Alert(
        name="HangCulprit",
        expression=rules.new_by(
            FAULTS, by=("run", "host", "rank", "kind"), kind=f'=~"{"|".join(_HANGS)}"', rank='!=""'
        ),
        hold_seconds=0,
        severity=Severity.CRITICAL,
        summary="rank {{ $labels.rank }} of {{ $labels.run }} is the culprit of a {{ $labels.kind }}",
        description=(
            "Ranks of {{ $labels.run }} wait for rank {{ $labels.rank }}, or issue other collectives than it does, as "
            "the agent of {{ $labels.host }} found."
        ),
        board="traincope-faults",
    )
    yield Alert(
        name="LostHost",
        expression=rules.new_by(FAULTS, by=("run", "host", "kind"), kind=f'="{FaultKind.LOST_HOST}"'),
        hold_seconds=0,
        severity=Severity.CRITICAL,
        summary="a host of {{ $labels.run }} was lost",
        description=(
            "Ranks of {{ $labels.run }} wait for a host that no longer answers the agent of {{ $labels.host }}."
        ),
        board="traincope-faults",
    )
    yield Alert(
        name="RankStale",
        expression=f"max by (run, host, rank) ({age}) > on (run) group_left {patience}"
        f" and on (run) {youngest} < {limits.hang_seconds:g}",
        hold_seconds=60,
        severity=Severity.WARNING,
        summary="rank {{ $labels.rank }} of {{ $labels.run }} is silent",
        description=(
            "Rank {{ $labels.rank }} on {{ $labels.host }} has written no record for {{ $value | humanizeDuration }}, "
            "while other ranks of {{ $labels.run }} continue."
        ),
        board="traincope-ranks",
    )
    yield Alert(
        name="RankGone",
        expression=f"sum by (run, host) ({ended}) > 0",
        hold_seconds=30,
        severity=Severity.CRITICAL,
        summary="ranks of {{ $labels.run }} are gone",
        description=(
            "{{ $value }} processes of {{ $labels.run }} on {{ $labels.host }} are gone without a recorded end."
        ),
        board="traincope-faults",
    )
    yield Alert(
        name="RankFailed",
        expression=rules.new_by(FAULTS, by=("run", "host", "rank", "kind"), kind=f'=~"{"|".join(_FAILURES)}"'),
        hold_seconds=0,
        severity=Severity.CRITICAL,
        summary="rank {{ $labels.rank }} of {{ $labels.run }} failed: {{ $labels.kind }}",
        description="Rank {{ $labels.rank }} of {{ $labels.run }} on {{ $labels.host }} ended with {{ $labels.kind }}.",
        board="traincope-faults",
    )
