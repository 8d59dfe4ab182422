"""Dashboard: which rank or host is slow, compared with all others?"""

from collections.abc import Iterator

from traincope.metrics.catalogue import DATA_AGE, LAST_STEP, RANK_INFO, STEP_DURATION
from traincope_dashboards.panels.board import Board
from traincope_dashboards.panels.panels import (
    FULL,
    HALF,
    RATIO,
    SECONDS,
    STEP,
    Column,
    Panel,
    Query,
    listing,
    over_time,
    rows,
)
from traincope_dashboards.panels.variables import Scopes
from traincope_dashboards.rules.recorded import BLAME, HOST_EXPOSED_SHARE
from traincope_dashboards.scope import Scope


def _panels(scopes: Scopes) -> Iterator[Panel]:
    job, shown = scopes.job, scopes.shown
    yield rows(
        "Hosts: exposed communication",
        text=(
            "One row per host; darker is more stalled time. The slow host is the LIGHT row among dark ones: the "
            "others wait for it. Choose it above; then see its ranks below, and Hardware."
        ),
        query=Query(expression=job.recorded(HOST_EXPOSED_SHARE), legend="{{host}}"),
        unit=RATIO,
        width=FULL,
        if_empty="no collective so far",
    )
    yield rows(
        "Ranks: straggler wait on their host",
        text=(
            "One row per rank of the chosen hosts; darker is more time that the host's other ranks waited "
            "because this rank joined collectives last. One dark row is a straggler; if all rows are equal, the "
            "imbalance is normal."
        ),
        query=Query(expression=shown.recorded(BLAME), legend="{{rank}}"),
        unit=RATIO,
        if_empty="no collective so far",
    )
    yield rows(
        "Ranks: step time",
        text=(
            "One row per rank of the chosen hosts; darker is a longer latest step. Synchronous ranks take the "
            "same time even if one is slow, so use the straggler wait to find the cause."
        ),
        query=Query(expression=f"max by (rank) ({shown.series_of(STEP_DURATION)})", legend="{{rank}}"),
        unit=SECONDS,
    )
    yield listing(
        "Worst ranks",
        text=(
            "The 20 ranks with the most straggler wait on their host, and the latest step of each; click a rank "
            "for its timeline. If a rank is above 5 % and far above the next one, `traincope report RUN` names "
            "the cause."
        ),
        keys=["host", "rank"],
        columns=_worst(shown),
        rank_links=True,
        if_empty="no collective so far",
    )
    yield over_time(
        "Straggler wait of the worst ranks",
        text=(
            "The ten ranks with the most straggler wait. A line that stays on top is a slow rank. Peaks that "
            "move between ranks are noise on the host: cron jobs, garbage collection, other tenants."
        ),
        queries=[Query(expression=f"topk(10, {shown.recorded(BLAME)})", legend="rank {{rank}}")],
        unit=RATIO,
        per_rank=True,
        if_empty="no collective so far",
    )
    yield over_time(
        "Steps between ranks",
        text=(
            "Steps between the furthest rank and the last one. If it stays above 1, a rank hangs or does not "
            "train with the others."
        ),
        queries=[
            Query(
                expression=f"max({shown.series_of(LAST_STEP)}) - min({shown.series_of(LAST_STEP)})",
                legend="steps apart",
            )
        ],
    )
    yield rows(
        "Ranks: time since the last record",
        text=(
            "One row per rank of the chosen hosts; darker is a longer time without records. All dark: the job "
            "hangs or waits in a long checkpoint. One dark: that rank is gone. `traincope report RUN` shows its "
            "last activity."
        ),
        query=Query(expression=f"max by (rank) ({shown.series_of(DATA_AGE)})", legend="{{rank}}"),
        unit=SECONDS,
        width=HALF,
    )
    yield listing(
        "Where ranks are",
        text=(
            "Mesh coordinates and device of the chosen ranks. Slow ranks that share a coordinate share a stage "
            "or a group; slow ranks that share a host share hardware."
        ),
        keys=["host", "rank", "coords", "device"],
        columns=[
            Column(name="is known", expression=f"max by (host, rank, coords, device) ({shown.series_of(RANK_INFO)})")
        ],
        width=HALF,
    )


def _worst(scope: Scope) -> list[Column]:
    worst = f"topk(20, sum by (host, rank) ({scope.recorded(BLAME)}))"
    return [
        Column(name="straggler wait", expression=worst, unit=RATIO),
        Column(
            name=STEP,
            expression=f"max by (host, rank) ({scope.series_of(LAST_STEP)}) and on (host, rank) {worst}",
            unit="none",
        ),
        Column(
            name="step time",
            expression=f"max by (host, rank) ({scope.series_of(STEP_DURATION)}) and on (host, rank) {worst}",
            unit=SECONDS,
        ),
    ]


RANKS_AND_HOSTS = Board(
    uid="traincope-ranks",
    title="traincope / Ranks and hosts",
    about="Which rank or host is slow, and since when?",
    panels=_panels,
)
