"""Timeline: every rank's records on one time axis, with steps, evaluations, kernel traces and matched collectives.

It is built from a run directory (`traincope.store` reads its files). Sums and findings are in `traincope.analysis`.
"""

from traincope.timeline.building import (
    build_copies,
    build_timeline,
    open_run,
    timelines_of_compared,
    with_copies,
    with_peers,
)
from traincope.timeline.clocks.clocks import ClockSource, RankClock, error_between_ns
from traincope.timeline.collectives.between_jobs import JoinedGroup, join_groups, with_joined
from traincope.timeline.collectives.channels import Channel
from traincope.timeline.collectives.instances import Instances, match_instances
from traincope.timeline.evaluation import Evaluations, evaluations
from traincope.timeline.rank_by_rank import each_rank
from traincope.timeline.timeline import LedgerClock, OpenRecord, RankTimeline, Step, Timeline
from traincope.timeline.traces import Traces

__all__ = [
    "Channel",
    "ClockSource",
    "Evaluations",
    "Instances",
    "JoinedGroup",
    "LedgerClock",
    "OpenRecord",
    "RankClock",
    "RankTimeline",
    "Step",
    "Timeline",
    "Traces",
    "build_copies",
    "build_timeline",
    "each_rank",
    "error_between_ns",
    "evaluations",
    "join_groups",
    "match_instances",
    "open_run",
    "timelines_of_compared",
    "with_copies",
    "with_joined",
    "with_peers",
]
