"""Series of a finished run, equal to those that a running job leaves in a database.

`finished_run` prepares the run for the makers. `replay` spreads over time the points that a running job sums.
`straggler_waits` and `job` make the other series. Metrics that no event can show are left out.
"""

from collections.abc import Callable, Iterator, Mapping

from traincope.analysis import Analysis
from traincope.metrics.catalogue import CATALOGUE
from traincope.metrics.metric import Metric
from traincope.metrics.sample import Distribution, Sample
from traincope.metrics.values import NODE_METRICS, ROW_METRICS
from traincope_exporters.history import job, straggler_waits
from traincope_exporters.history.finished_run import FinishedRun
from traincope_exporters.history.replay import replayed
from traincope_exporters.history.series import Series

__all__ = ["LIVE_ONLY", "MAKERS", "Series", "final", "history"]

Maker = Callable[[FinishedRun, Metric], Iterator[Series]]

MAKERS: Mapping[str, Maker] = {
    **dict.fromkeys((*(metric.name for metric in ROW_METRICS), *NODE_METRICS), replayed),
    "run": job.run_info,
    "rank": job.rank_info,
    "ledger.clock": job.ledger_clock,
    "straggler.wait": straggler_waits.straggler_wait,
    "faults": job.faults,
    "checkpoints": job.checkpoints,
    "checkpoint.age": job.checkpoint_age,
    "job.time": job.job_time,
    "goodput": job.goodput,
    "job.interruptions": job.interruptions,
    "job.mtbf": job.mtbf,
    "job.badput": job.badput,
    "ranks": job.ranks,
    "recorder.records": job.records,
    "recorder.dropped": job.dropped,
}
"""Metric name -> function that makes its series."""

LIVE_ONLY = ("gpu.", "link.", "slot.", "agent.", "data.age")
"""Name prefixes of metrics that exist only while a job runs. No event holds their values over time: `rank.json` has one
state of each link, and events have many errors alone."""


def history(analysis: Analysis) -> Iterator[Series]:
    """Series of all metrics in the catalogue's order, one after the other because together they may be large."""
    run = FinishedRun(analysis)
    for metric in CATALOGUE:
        if metric.name in MAKERS and run.ranks:
            yield from (series for series in MAKERS[metric.name](run, metric) if len(series.times_ns))


def final(analysis: Analysis) -> Iterator[Sample]:
    """Last value of each series."""
    yield from map(_last, history(analysis))


def _last(series: Series) -> Sample:
    value: float | Distribution = float(series.values[-1])
    if series.counts is not None:
        value = Distribution(counts=tuple(series.counts[-1].tolist()), sum=float(series.values[-1]))
    return Sample(metric=series.metric, labels=series.labels, value=value)
