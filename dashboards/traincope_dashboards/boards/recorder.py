"""What does looking cost, and is anything missed?"""

from collections.abc import Iterator

from traincope.metrics import AGENT_LAG, AGENT_TIME, DROPPED, OWN_TIME, RECORDS, WALL
from traincope_dashboards.board import Board
from traincope_dashboards.panels import RATIO, SECONDS, Panel, Query, number, over_time
from traincope_dashboards.recorded import OWN_SHARE
from traincope_dashboards.variables import Scopes


def _panels(scopes: Scopes) -> Iterator[Panel]:
    job, shown = scopes.job, scopes.shown
    yield number(
        "Own cost",
        how="CPU time of the recorder as a share of step time, over all ranks. Above 0.5 % it lowers its own level;"
        " above 1 % lower the level by hand: traincope.run(level=0).",
        expression=job.recorded(OWN_SHARE),
        unit=RATIO,
        bad_above=0.01,
        width=8,
    )
    yield number(
        "Records lost",
        how="Since the attempt began, over all ranks. Not zero: the node's disk is full or the budget is used up;"
        " numbers of those steps are too low.",
        expression=f"sum({job.of(DROPPED)})",
        unit="none",
        bad_above=1,
        width=8,
    )
    yield number(
        "Oldest numbers",
        how="How long ago the slowest agent looked at its ranks. Above a minute: the agent is starved of CPU, or its"
        " disk hangs; everything here is as old.",
        expression=f"max({job.of(AGENT_LAG)})",
        unit=SECONDS,
        bad_above=60,
        width=8,
    )
    yield over_time(
        "Own cost by host",
        how="The recorder's CPU time as a share of the ranks' step time. A host that stands out has more to record,"
        " or a slower clock.",
        queries=[
            Query(
                expression=f"sum by (host) ({shown.rate(OWN_TIME)}) / sum by (host) ({shown.rate(WALL)})",
                legend="{{host}}",
            )
        ],
        unit=RATIO,
    )
    yield over_time(
        "Records",
        how="Records a second by host. Proportional to steps; a jump is a module or an operation that is new.",
        queries=[Query(expression=f"sum by (host) ({shown.rate(RECORDS)})", legend="{{host}}")],
    )
    yield over_time(
        "CPU of the agents",
        how="Share of one core that each node's agent takes. Above 3 %: scrape less often (15 s is enough).",
        queries=[Query(expression=f"sum by (host) ({shown.rate(AGENT_TIME)})", legend="{{host}}")],
        unit=RATIO,
    )
    yield over_time(
        "Lost records by host",
        how="Since the attempt began. Free the host's disk, or give `disk_budget` more.",
        queries=[Query(expression=f"sum by (host) ({shown.of(DROPPED)})", legend="{{host}}")],
    )


RECORDER = Board(
    uid="traincope-recorder",
    title="traincope / Recorder health",
    about="What does recording cost, and is anything missed?",
    panels=_panels,
)
