"""Dashboard: how much does recording cost, and is the record complete?"""

from collections.abc import Iterator

from traincope.metrics.catalogue import AGENT_LAG, AGENT_TIME, DROPPED, OWN_TIME, RECORDS, WALL
from traincope_dashboards.panels.board import Board
from traincope_dashboards.panels.panels import RATIO, SECONDS, Panel, Query, number, over_time
from traincope_dashboards.panels.variables import Scopes
from traincope_dashboards.rules.recorded import RECORDER_SHARE


def _panels(scopes: Scopes) -> Iterator[Panel]:
    job, shown = scopes.job, scopes.shown
    yield number(
        "Overhead",
        text=(
            "CPU time of the recorder as a share of step time, over all ranks. Above 0.5 % the recorder lowers "
            "its level itself. Above 1 % lower it: traincope.run(level=0)."
        ),
        expression=job.recorded(RECORDER_SHARE),
        unit=RATIO,
        bad_above=0.01,
        width=8,
    )
    yield number(
        "Dropped events",
        text=(
            "Dropped events since the attempt began, over all ranks. If not zero, the node's disk is full or "
            "the disk budget is used up; the numbers of those steps are too low."
        ),
        expression=f"sum({job.series_of(DROPPED)})",
        unit="none",
        bad_above=1,
        width=8,
    )
    yield number(
        "Age of the numbers",
        text=(
            "Time since the slowest agent last read its ranks. Above a minute: the agent lacks CPU, or its disk "
            "hangs; everything shown here is as old."
        ),
        expression=f"max({job.series_of(AGENT_LAG)})",
        unit=SECONDS,
        bad_above=60,
        width=8,
    )
    yield over_time(
        "Overhead by host",
        text=(
            "CPU time of the recorder as a share of the ranks' step time, by host. A host far above the others "
            "records more events or has a slower CPU."
        ),
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
        text="Events per second by host. They are proportional to steps; a jump means a new module or operation.",
        queries=[Query(expression=f"sum by (host) ({shown.rate(RECORDS)})", legend="{{host}}")],
    )
    yield over_time(
        "CPU of the agents",
        text="Share of one core that each node's agent uses. Above 3 %: scrape less often (15 s is sufficient).",
        queries=[Query(expression=f"sum by (host) ({shown.rate(AGENT_TIME)})", legend="{{host}}")],
        unit=RATIO,
    )
    yield over_time(
        "Dropped events by host",
        text=(
            "Dropped events since the attempt began. If not zero, free disk space on the host, or increase "
            "`disk_budget`."
        ),
        queries=[Query(expression=f"sum by (host) ({shown.series_of(DROPPED)})", legend="{{host}}")],
    )


RECORDER = Board(
    uid="traincope-recorder",
    title="traincope / Recorder health",
    about="How much does recording cost, and is the record complete?",
    panels=_panels,
)
