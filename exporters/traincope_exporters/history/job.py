"""Series of the job: what it is, what happened to it, what its time went to.

What is known of the run as a whole alone stands at its end.
"""

from collections.abc import Iterator

import numpy as np

from traincope.events import Kind
from traincope.metrics import RANK_LABELS, Metric
from traincope_exporters.history.finished import NS, Finished, Rank, by_step
from traincope_exporters.history.series import MS, Ints, Series, counter, gauge
from traincope_exporters.telling import about_rank, about_run, counted_faults, parts_of_time, saved_ns

ALIVE, ENDED, GONE = "alive", "ended", "gone"

Made = Iterator[Series]


def run_info(run: Finished, metric: Metric) -> Made:
    recorded = run.analysis.timeline.run
    about = about_run(recorded.info, attempt=recorded.last_attempt)
    for labels, ranks in run.groups(metric.labels):
        times, _ = by_step(ranks)
        yield gauge(metric, (*labels, *about), times, np.ones(len(times)))


def rank_info(run: Finished, metric: Metric) -> Made:
    about = {rank.rank: about_rank(rank.info) for rank in run.analysis.timeline.run.ranks}
    for labels, (rank,) in run.groups(RANK_LABELS):
        yield gauge(metric, (*labels, *about[rank.number]), rank.ends_ns, np.ones(len(rank.ends_ns)))


def faults(run: Finished, metric: Metric) -> Made:
    """By rank and kind; what is the whole job's stands with its first host."""
    happened: dict[tuple[str, str], list[int]] = {}
    for rank, kind, at_ns in counted_faults(run.analysis.faults):
        happened.setdefault((rank, kind), []).append(at_ns)
    places = {labels[-1]: labels for labels, _ in run.groups(RANK_LABELS)}
    first = next(iter(places.values()))
    for (number, kind), times in sorted(happened.items()):
        labels = places.get(number, (*first[:-1], number))
        begin_ns = min(run.begin_ns, min(times) - MS)
        yield counter(metric, (*labels, kind), _array(times), np.ones(len(times), np.int64), begin_ns=begin_ns, unit=1)


def checkpoints(run: Finished, metric: Metric) -> Made:
    times = _saves(run)
    for labels, _ in run.groups(metric.labels):
        ones = np.ones(len(times), dtype=np.int64)
        yield counter(metric, labels, times, ones, begin_ns=run.begin_ns, unit=1)


def checkpoint_age(run: Finished, metric: Metric) -> Made:
    """At the end of each step."""
    times = np.append(run.analysis.timeline.start_ns, np.sort(_saves(run)))
    for labels, ranks in run.groups(metric.labels):
        ends, _ = by_step(ranks)
        last = times[np.searchsorted(times, ends, side="right") - 1]
        yield gauge(metric, labels, ends, (ends - last) / NS)


def _saves(run: Finished) -> Ints:
    """When checkpoints were whole."""
    return _array([ended for mark in run.analysis.faults if (ended := saved_ns(mark)) is not None])


def job_time(run: Finished, metric: Metric) -> Made:
    job = run.analysis.goodput
    parts = {} if job is None else parts_of_time(job)
    for labels, _ in run.groups(metric.labels):
        for part, ns in parts.items():
            yield _at_end(run, metric, (*labels, part), ns / NS)


def goodput(run: Finished, metric: Metric) -> Made:
    job = run.analysis.goodput
    if job is not None and job.productive_ratio is not None:
        for labels, _ in run.groups(metric.labels):
            yield _at_end(run, metric, labels, job.productive_ratio)


def ranks(run: Finished, metric: Metric) -> Made:
    """All alive as long as steps end, and how they ended."""
    for labels, own in run.groups(metric.labels):
        times, _ = by_step(own)
        times = np.append(times, run.analysis.timeline.end_ns)
        ended = sum(rank.timeline.ending is not None for rank in own)
        final = {ALIVE: 0, ENDED: ended, GONE: len(own) - ended}
        for state, number in final.items():
            values = np.full(len(times), len(own) if state == ALIVE else 0)
            values[-1] = number
            yield gauge(metric, (*labels, state), times, values)


def records(run: Finished, metric: Metric) -> Made:
    """At the end of each step, and at the rank's last instant."""
    for labels, own in run.groups(metric.labels):
        told = [_records(rank) for rank in own]
        times, added = (np.concatenate(column) for column in zip(*told, strict=True))
        yield counter(metric, labels, times, added, begin_ns=run.begin_ns, unit=1)


def _records(rank: Rank) -> tuple[Ints, Ints]:
    """When looked at, and how many had come since."""
    begun = np.sort(np.concatenate([thread["start_ns"] for thread in rank.timeline.threads.values()]))
    times = np.append(rank.ends_ns, rank.timeline.last_ns)
    return times, np.diff(np.searchsorted(begun, times, side="right"), prepend=0)


def dropped(run: Finished, metric: Metric) -> Made:
    """When it was noted; what never was stands at the end."""
    counts = {rank.rank: rank.dropped for rank in run.analysis.timeline.run.ranks}
    for labels, own in run.groups(metric.labels):
        noted = [rank.timeline.of_kind(Kind.DROPPED) for rank in own]
        times = np.concatenate([*(one["start_ns"] for one in noted), [run.end_ns]])
        added = np.concatenate([*(one["value"] for one in noted), [0]])
        added[-1] = sum(counts[rank.number] for rank in own) - added.sum()
        yield counter(metric, labels, times, added, begin_ns=run.begin_ns, unit=1)


def _at_end(run: Finished, metric: Metric, labels: tuple[str, ...], value: float) -> Series:
    return gauge(metric, labels, _array([run.end_ns]), np.array([value]))


def _array(values: list[int]) -> Ints:
    return np.array(values, dtype=np.int64)
