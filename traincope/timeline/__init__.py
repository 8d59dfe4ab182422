"""Run directory -> time: every rank's records on one axis, steps found, collectives matched across ranks."""

from traincope.timeline.building import build_timeline, open_run
from traincope.timeline.channels import Channel
from traincope.timeline.clocks import ClockSource, RankClock, error_between_ns
from traincope.timeline.evaluation import Evaluations, evaluations
from traincope.timeline.instances import Instances, match_instances
from traincope.timeline.timeline import OpenRecord, RankTimeline, Step, Timeline
from traincope.timeline.traces import Traces

__all__ = [
    "Channel",
    "ClockSource",
    "Evaluations",
    "Instances",
    "OpenRecord",
    "RankClock",
    "RankTimeline",
    "Step",
    "Timeline",
    "Traces",
    "build_timeline",
    "error_between_ns",
    "evaluations",
    "match_instances",
    "open_run",
]
