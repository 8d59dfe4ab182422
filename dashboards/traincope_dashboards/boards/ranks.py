"""Who is slow? Every host and rank beside the others."""

from collections.abc import Iterator

from traincope.metrics import DATA_AGE, LAST_STEP, RANK_INFO, STEP_DURATION
from traincope_dashboards.board import Board
from traincope_dashboards.panels import (
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
from traincope_dashboards.recorded import BLAME, HOST_EXPOSED_SHARE
from traincope_dashboards.scope import Scope
from traincope_dashboards.variables import Scopes


def _panels(scopes: Scopes) -> Iterator[Panel]:
    job, shown = scopes.job, scopes.shown
    yield rows(
        "Hosts: communication that holds up compute",
        how="A row a host, darker where its ranks stand still more. The slow host is the LIGHT row among dark ones:"
        " the others wait for it. Choose it above, and look at its ranks below and at Hardware.",
        query=Query(expression=job.recorded(HOST_EXPOSED_SHARE), legend="{{host}}"),
        unit=RATIO,
        width=FULL,
    )
    yield rows(
        "Ranks: wait they cause on their host",
        how="A row a rank of the chosen hosts, darker where the host's other ranks stood still because it joined"
        " collectives last. One dark row is a straggler; all alike is ordinary imbalance.",
        query=Query(expression=shown.recorded(BLAME), legend="{{rank}}"),
        unit=RATIO,
    )
    yield rows(
        "Ranks: step time",
        how="A row a rank of the chosen hosts, darker where its latest step took longer. Synchronous ranks take the"
        " same time however slow one is, so look at the wait they cause to find who is to blame.",
        query=Query(expression=f"max by (rank) ({shown.of(STEP_DURATION)})", legend="{{rank}}"),
        unit=SECONDS,
    )
    yield listing(
        "Worst ranks",
        how="The 20 ranks that hold up their host most, and the step each has reached; click a rank for its timeline"
        " at that step. Above 5 % and far above the next: `traincope report RUN` names the cause.",
        keys=["host", "rank"],
        columns=_worst(shown),
        rank_links=True,
    )
    yield over_time(
        "Wait that the worst ranks cause",
        how="The ten ranks that hold up their host most. A line that stays on top is a slow rank; tops that change"
        " from one to another are noise of the host: cron jobs, garbage collection, other tenants.",
        queries=[Query(expression=f"topk(10, {shown.recorded(BLAME)})", legend="rank {{rank}}")],
        unit=RATIO,
        per_rank=True,
    )
    yield over_time(
        "Distance between ranks",
        how="Steps between the rank that is furthest and the one that is least far. Above 1 for long: a rank hangs,"
        " or does not train with the others.",
        queries=[Query(expression=f"max({shown.of(LAST_STEP)}) - min({shown.of(LAST_STEP)})", legend="steps apart")],
    )
    yield rows(
        "Ranks: age of their data",
        how="A row a rank of the chosen hosts, darker the longer it has written nothing. All dark: the job hangs or"
        " waits in a long checkpoint; one dark: that rank is gone. `traincope report RUN` says what it was in.",
        query=Query(expression=f"max by (rank) ({shown.of(DATA_AGE)})", legend="{{rank}}"),
        unit=SECONDS,
        width=HALF,
    )
    yield listing(
        "Where ranks are",
        how="Coordinates of the chosen ranks on the mesh, and their device: ranks that are slow together and share a"
        " coordinate share a stage or a group, ranks that share a host share hardware.",
        keys=["host", "rank", "coords", "device"],
        columns=[Column(name="is known", expression=f"max by (host, rank, coords, device) ({shown.of(RANK_INFO)})")],
        width=HALF,
    )


def _worst(scope: Scope) -> list[Column]:
    worst = f"topk(20, sum by (host, rank) ({scope.recorded(BLAME)}))"
    return [
        Column(name="wait it causes", expression=worst, unit=RATIO),
        Column(
            name=STEP,
            expression=f"max by (host, rank) ({scope.of(LAST_STEP)}) and on (host, rank) {worst}",
            unit="none",
        ),
        Column(
            name="step time",
            expression=f"max by (host, rank) ({scope.of(STEP_DURATION)}) and on (host, rank) {worst}",
            unit=SECONDS,
        ),
    ]


RANKS_AND_HOSTS = Board(
    uid="traincope-ranks",
    title="traincope / Ranks and hosts",
    about="Which rank or host is slow, and since when?",
    panels=_panels,
)
