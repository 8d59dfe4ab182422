"""Is the job still going?"""

from collections.abc import Iterator

from traincope.analysis.faults import ENDS, FaultKind
from traincope.metrics import DATA_AGE, FAULTS, RANKS, STEP_DURATION
from traincope_dashboards.alert import Alert, Rules, Severity
from traincope_dashboards.recorded import ALIVE

_FAILURES = sorted(ENDS - {FaultKind.NO_END})


def alerts(rules: Rules) -> Iterator[Alert]:
    scope, limits = rules.all, rules.limits
    age, alive = scope.of(DATA_AGE), scope.of(RANKS, state=ALIVE)
    gone = scope.of(RANKS, state='="gone"')
    youngest = f"min by (run) ({age})"
    # Before the first step there is no step time to go by.
    patience = f"clamp_min(3 * max by (run) ({scope.of(STEP_DURATION)}) or 0 * {youngest}, {limits.hang_seconds:g})"
    yield Alert(
        name="Hang",
        expression=f"{youngest} > on (run) {patience} and on (run) sum by (run) ({alive}) > 0",
        hold_seconds=60,
        severity=Severity.CRITICAL,
        summary="{{ $labels.run }} hangs",
        description="No rank of {{ $labels.run }} has written a record for {{ $value | humanizeDuration }}, and their"
        " processes are alive.",
        board="traincope-faults",
    )
    yield Alert(
        name="RankStale",
        expression=f"max by (run, host, rank) ({age}) > on (run) group_left {patience}"
        f" and on (run) {youngest} < {limits.hang_seconds:g}",
        hold_seconds=60,
        severity=Severity.WARNING,
        summary="rank {{ $labels.rank }} of {{ $labels.run }} is silent",
        description="Rank {{ $labels.rank }} on {{ $labels.host }} has written no record for"
        " {{ $value | humanizeDuration }} while other ranks of {{ $labels.run }} go on.",
        board="traincope-ranks",
    )
    yield Alert(
        name="RankGone",
        expression=f"sum by (run, host) ({gone}) > 0",
        hold_seconds=30,
        severity=Severity.CRITICAL,
        summary="ranks of {{ $labels.run }} are gone",
        description="Of {{ $labels.run }} on {{ $labels.host }} {{ $value }} processes are there no more, and"
        " they left no word.",
        board="traincope-faults",
    )
    yield Alert(
        name="RankFailed",
        expression=rules.new(FAULTS, by=("run", "host", "rank", "kind"), kind=f'=~"{"|".join(_FAILURES)}"'),
        hold_seconds=0,
        severity=Severity.CRITICAL,
        summary="rank {{ $labels.rank }} of {{ $labels.run }} failed: {{ $labels.kind }}",
        description="Rank {{ $labels.rank }} of {{ $labels.run }} on {{ $labels.host }} ended by {{ $labels.kind }}.",
        board="traincope-faults",
    )
