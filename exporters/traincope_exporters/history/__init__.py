"""A finished run as the series that a running one leaves in a database, of every metric that its records can tell.

`series` makes points, `finished` is the run as the makers see it, `steps`, `sending`, `blame`, `rank_records` and `job`
make the series: a metric is told by one function and one line here.
"""

from collections.abc import Callable, Iterator, Mapping

from traincope.analysis import Analysis
from traincope.metrics import CATALOGUE, Distribution, Metric, Sample
from traincope_exporters.history import blame, job, rank_records, sending, steps
from traincope_exporters.history.finished import Finished
from traincope_exporters.history.series import Series

__all__ = ["LIVE_ONLY", "MAKERS", "Series", "final", "history"]

Maker = Callable[[Finished, Metric], Iterator[Series]]

MAKERS: Mapping[str, Maker] = {
    "run": job.run_info,
    "rank": job.rank_info,
    "steps": steps.steps_done,
    "step.last": steps.last_step,
    "step.duration": steps.step_duration,
    "step.time": steps.step_times,
    "ledger": steps.ledger,
    "step.wall": steps.wall,
    "mfu": steps.mfu,
    "mfu.paper": steps.mfu_paper,
    "hfu": steps.hfu,
    "tokens": steps.tokens,
    "bubble": steps.bubble,
    "bubble.part": steps.bubble_part,
    "bubble.theory": steps.bubble_theory,
    "caused.wait": blame.caused_wait,
    "logged": rank_records.logged,
    "collective.duration": sending.durations,
    "collective.size": sending.sizes,
    "collective.transfer": sending.on_the_wire,
    "collective.wait": sending.waits,
    "collective.bus.bandwidth": sending.bus_bandwidths,
    "memory": rank_records.memory,
    "faults": job.faults,
    "checkpoints": job.checkpoints,
    "checkpoint.age": job.checkpoint_age,
    "job.time": job.job_time,
    "goodput": job.goodput,
    "ranks": job.ranks,
    "recorder.time": steps.own_time,
    "recorder.records": job.records,
    "recorder.dropped": job.dropped,
    "module.time": rank_records.modules,
    "pipeline.action.time": rank_records.actions,
}
"""By the metric's name in the catalogue."""

LIVE_ONLY = ("gpu.", "agent.", "data.age")
"""Beginnings of names of metrics that are looked at while a job runs, and recorded nowhere."""


def history(analysis: Analysis) -> Iterator[Series]:
    """Metrics in the catalogue's order, one series after the other: all of them together may be large."""
    run = Finished(analysis)
    for metric in CATALOGUE:
        if metric.name in MAKERS and run.ranks:
            yield from (series for series in MAKERS[metric.name](run, metric) if len(series.times_ns))


def final(analysis: Analysis) -> Iterator[Sample]:
    """What each series was last."""
    yield from map(_last, history(analysis))


def _last(series: Series) -> Sample:
    value: float | Distribution = float(series.values[-1])
    if series.counts is not None:
        value = Distribution(counts=tuple(series.counts[-1].tolist()), sum=float(series.values[-1]))
    return Sample(metric=series.metric, labels=series.labels, value=value)
