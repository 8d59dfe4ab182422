"""Series of the job: what it is, what happened to it, what its time went to.

What is known of the run as a whole alone stands at its end.
"""

from collections.abc import Iterator

import numpy as np

from traincope.analysis import Fault, FaultKind
from traincope.events import Kind
from traincope.metrics import RANK_LABELS, Metric
from traincope.store.attempts import SAVED, SAVING
from traincope_exporters.history.finished import NS, Finished, Rank, by_step
from traincope_exporters.history.series import MS, Ints, Series, counter, gauge

JOB = ""
"""Rank of a fault that is the whole job's."""
ALIVE, ENDED, GONE = "alive", "ended", "gone"

Made = Iterator[Series]


def run_info(run: Finished, metric: Metric) -> Made:
    recorded = run.analysis.timeline.run
    said = {
        "world_size": str(recorded.info.world_size),
        "mesh": ",".join(f"{axis}={size}" for axis, size in recorded.info.mesh.items()),
        "attempt": str(recorded.last_attempt),
        "torch": recorded.info.versions.get("torch", ""),
        "traincope": recorded.info.versions.get("traincope", ""),
    }
    for labels, ranks in run.groups(metric.labels):
        times, _ = by_step(ranks)
        rest = (said[label] for label in metric.labels if label in said)
        yield gauge(metric, (*labels, *rest), times, np.ones(len(times)))


def rank_info(run: Finished, metric: Metric) -> Made:
    devices = {rank.rank: rank.info.device.get("name", "") for rank in run.analysis.timeline.run.ranks}
    for labels, (rank,) in run.groups(RANK_LABELS):
        coords = ",".join(f"{axis}={at}" for axis, at in rank.timeline.coords.items())
        about = (coords, str(devices[rank.number]))
        yield gauge(metric, (*labels, *about), rank.ends_ns, np.ones(len(rank.ends_ns)))


def faults(run: Finished, metric: Metric) -> Made:
    """By rank and kind; what is the whole job's stands with its first host."""
    happened: dict[tuple[str, str], list[int]] = {}
    for fault in run.analysis.faults:
        for rank in fault.ranks or (JOB,) if fault.is_fault else ():
            happened.setdefault((str(rank), fault.kind.value), []).append(fault.at_ns)
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
    return _array([ended for fault in run.analysis.faults if (ended := _saved_ns(fault)) is not None])


def _saved_ns(fault: Fault) -> int | None:
    if fault.kind is FaultKind.EVENT and fault.what == SAVED:
        return fault.at_ns
    whole = fault.kind is FaultKind.CHECKPOINT and fault.what.partition(" ")[0] == SAVING and not fault.evidence
    return fault.at_ns + (fault.lasted_ns or 0) if whole else None


def job_time(run: Finished, metric: Metric) -> Made:
    job = run.analysis.goodput
    if job is None:
        return
    parts = {
        "productive": job.productive_ns,
        "lost": job.lost_ns,
        "startup": job.startup_ns,
        "restart": job.restart_ns,
        "checkpoint_stall": job.checkpoint_stall_ns,
        "evaluation": job.evaluation_ns,
        "other": job.other_ns,
    }
    for labels, _ in run.groups(metric.labels):
        for part, ns in parts.items():
            if ns is not None:
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
