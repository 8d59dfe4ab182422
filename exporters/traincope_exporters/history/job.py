"""Series of the job: its description, faults, checkpoints and the parts of its time.

A value that is known only for the whole run is placed at its end.
"""

from collections.abc import Iterator

import numpy as np

from traincope.arrays import Ints
from traincope.events import Kind
from traincope.live.window import RankState
from traincope.metrics.labels import (
    badput_by_cause,
    checkpoint_end_ns,
    counted_faults,
    mtbf_bounds,
    rank_labels,
    run_labels,
    time_parts,
)
from traincope.metrics.metric import RANK_LABELS, Metric
from traincope.metrics.values import RankSteps, sum_by_step
from traincope_exporters.history.finished_run import NS, FinishedRun
from traincope_exporters.history.series import MS, Series, counter, gauge


def run_info(run: FinishedRun, metric: Metric) -> Iterator[Series]:
    recorded = run.analysis.timeline.run
    info_labels = run_labels(recorded.info, attempt=recorded.last_attempt)
    for labels, ranks in run.groups(metric.labels):
        times, _ = sum_by_step(ranks)
        yield gauge(metric, (*labels, *info_labels), times, np.ones(len(times)))


def ledger_clock(run: FinishedRun, metric: Metric) -> Iterator[Series]:
    for labels, ranks in run.groups(metric.labels):
        times, _ = sum_by_step(ranks)
        yield gauge(metric, (*labels, run.analysis.ledger.clock.value), times, np.ones(len(times)))


def rank_info(run: FinishedRun, metric: Metric) -> Iterator[Series]:
    info_labels = {rank.rank: rank_labels(rank.info) for rank in run.analysis.timeline.run.ranks}
    for labels, (rank,) in run.groups(RANK_LABELS):
        yield gauge(metric, (*labels, *info_labels[rank.number]), rank.ends_ns, np.ones(len(rank.ends_ns)))


def faults(run: FinishedRun, metric: Metric) -> Iterator[Series]:
    """Faults by rank and kind. A fault of the whole job is shown on its first host."""
    times_by_series: dict[tuple[str, str], list[int]] = {}
    for rank, kind, at_ns in counted_faults(run.analysis.faults_of_attempt):
        times_by_series.setdefault((rank, kind), []).append(at_ns)
    places = {labels[-1]: labels for labels, _ in run.groups(RANK_LABELS)}
    first = next(iter(places.values()))
    for (number, kind), times in sorted(times_by_series.items()):
        labels = places.get(number, (*first[:-1], number))
        begin_ns = min(run.begin_ns, min(times) - MS)
        yield counter(metric, (*labels, kind), _array(times), np.ones(len(times), np.int64), begin_ns=begin_ns, unit=1)


def checkpoints(run: FinishedRun, metric: Metric) -> Iterator[Series]:
    times = _checkpoint_ends(run)
    for labels, _ in run.groups(metric.labels):
        ones = np.ones(len(times), dtype=np.int64)
        yield counter(metric, labels, times, ones, begin_ns=run.begin_ns, unit=1)


def checkpoint_age(run: FinishedRun, metric: Metric) -> Iterator[Series]:
    """Checkpoint age at the end of each step."""
    times = np.append(run.analysis.timeline.start_ns, np.sort(_checkpoint_ends(run)))
    for labels, ranks in run.groups(metric.labels):
        ends, _ = sum_by_step(ranks)
        last = times[np.searchsorted(times, ends, side="right") - 1]
        yield gauge(metric, labels, ends, (ends - last) / NS)


def _checkpoint_ends(run: FinishedRun) -> Ints:
    """Times at which checkpoints were complete."""
    return _array([ended for mark in run.analysis.faults_of_attempt if (ended := checkpoint_end_ns(mark)) is not None])


def job_time(run: FinishedRun, metric: Metric) -> Iterator[Series]:
    job = run.analysis.goodput
    parts = {} if job is None else time_parts(job)
    for labels, _ in run.groups(metric.labels):
        for part, ns in parts.items():
            yield _at_end(run, metric, (*labels, part), ns / NS)


def goodput(run: FinishedRun, metric: Metric) -> Iterator[Series]:
    job = run.analysis.goodput
    if job is not None and job.productive_ratio is not None:
        for labels, _ in run.groups(metric.labels):
            yield _at_end(run, metric, labels, job.productive_ratio)


def interruptions(run: FinishedRun, metric: Metric) -> Iterator[Series]:
    job = run.analysis.reliability
    for labels, _ in run.groups(metric.labels):
        for cause in () if job is None else job.causes:
            yield _at_end(run, metric, (*labels, cause.cause), cause.count)


def mtbf(run: FinishedRun, metric: Metric) -> Iterator[Series]:
    job = run.analysis.reliability
    for labels, _ in run.groups(metric.labels):
        for bound, ns in ({} if job is None else mtbf_bounds(job)).items():
            yield _at_end(run, metric, (*labels, bound), ns / NS)


def badput(run: FinishedRun, metric: Metric) -> Iterator[Series]:
    job = run.analysis.reliability
    for labels, _ in run.groups(metric.labels):
        for (part, cause), ns in ({} if job is None else badput_by_cause(job)).items():
            yield _at_end(run, metric, (*labels, part, cause), ns / NS)


def ranks(run: FinishedRun, metric: Metric) -> Iterator[Series]:
    """Ranks by state: all alive until the last step, then as they ended."""
    for labels, node_ranks in run.groups(metric.labels):
        times, _ = sum_by_step(node_ranks)
        times = np.append(times, run.analysis.timeline.end_ns)
        ended = sum(rank.timeline.ending is not None for rank in node_ranks)
        final = {RankState.ALIVE: 0, RankState.ENDED: ended, RankState.GONE: len(node_ranks) - ended}
        for state, number in final.items():
            values = np.full(len(times), len(node_ranks) if state is RankState.ALIVE else 0)
            values[-1] = number
            yield gauge(metric, (*labels, state.value), times, values)


def records(run: FinishedRun, metric: Metric) -> Iterator[Series]:
    """Number of events at the end of each step, and at the rank's last event."""
    for labels, node_ranks in run.groups(metric.labels):
        columns = [_records(rank) for rank in node_ranks]
        times, added = (np.concatenate(column) for column in zip(*columns, strict=True))
        yield counter(metric, labels, times, added, begin_ns=run.begin_ns, unit=1)


def _records(rank: RankSteps) -> tuple[Ints, Ints]:
    """Times, and the number of events since the time before."""
    starts = np.sort(np.concatenate([thread["start_ns"] for thread in rank.timeline.threads.values()]))
    times = np.append(rank.ends_ns, rank.timeline.last_ns)
    return times, np.diff(np.searchsorted(starts, times, side="right"), prepend=0)


def dropped(run: FinishedRun, metric: Metric) -> Iterator[Series]:
    """Dropped events when they were recorded. Those without a DROPPED event are added at the end."""
    counts = {rank.rank: rank.dropped for rank in run.analysis.timeline.run.ranks}
    for labels, node_ranks in run.groups(metric.labels):
        noted = [rank.timeline.of_kind(Kind.DROPPED) for rank in node_ranks]
        times = np.concatenate([*(records_of_rank["start_ns"] for records_of_rank in noted), [run.end_ns]])
        added = np.concatenate([*(records_of_rank["value"] for records_of_rank in noted), [0]])
        added[-1] = sum(counts[rank.number] for rank in node_ranks) - added.sum()
        yield counter(metric, labels, times, added, begin_ns=run.begin_ns, unit=1)


def _at_end(run: FinishedRun, metric: Metric, labels: tuple[str, ...], value: float) -> Series:
    return gauge(metric, labels, _array([run.end_ns]), np.array([value]))


def _array(values: list[int]) -> Ints:
    return np.array(values, dtype=np.int64)
