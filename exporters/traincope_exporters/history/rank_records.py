"""Series of single ranks' other records: memory, logged values, modules, pipeline actions."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from traincope.events import OPEN, Kind, Phase
from traincope.metrics import RANK_LABELS, Metric
from traincope_exporters.history.finished import NS, Finished, Rank
from traincope_exporters.history.series import Series, counter, gauge
from traincope_exporters.telling import INTERNAL, MOST_LOGGED, MOST_MODULES, OTHER_MODULES

Made = Iterator[Series]


def memory(run: Finished, metric: Metric) -> Made:
    """After steps."""
    for labels, (rank,) in run.groups(RANK_LABELS):
        records = rank.timeline.of_kind(Kind.MEMORY)
        for name, own in _by_name(rank, records[records["phase"] == Phase.NONE]):
            yield gauge(metric, (*labels, name), own["start_ns"], own["value"])


def logged(run: Finished, metric: Metric) -> Made:
    """Of each name the lowest rank's of those that share its series, of the first names."""
    for labels, ranks in run.groups(metric.labels):
        shown: set[str] = set()
        for rank in ranks:
            for name, own in _by_name(rank, rank.timeline.of_kind(Kind.SCALAR)):
                if INTERNAL not in name and name not in shown and len(shown) < MOST_LOGGED:
                    shown.add(name)
                    values = np.ascontiguousarray(own["value"]).view(np.float64)
                    yield gauge(metric, (*labels, name), own["start_ns"], values)


def modules(run: Finished, metric: Metric) -> Made:
    for labels, (rank,) in run.groups(RANK_LABELS):
        records = _all_threads(rank)
        spans = records[(records["kind"] == Kind.SPAN) & (records["phase"] == Phase.FORWARD)]
        named = list(_by_name(rank, spans))
        for name, own in named[:MOST_MODULES]:
            yield from _time(run, metric, (*labels, name), rank, own)
        if len(named) > MOST_MODULES:
            others = np.concatenate([own for _, own in named[MOST_MODULES:]])
            yield from _time(run, metric, (*labels, OTHER_MODULES), rank, others)


def actions(run: Finished, metric: Metric) -> Made:
    for labels, (rank,) in run.groups(RANK_LABELS):
        records = _all_threads(rank)
        records = records[records["kind"] == Kind.ACTION]
        for stage in np.unique(records["peer"]).tolist():
            for name, own in _by_name(rank, records[records["peer"] == stage]):
                yield from _time(run, metric, (*labels, str(stage), name), rank, own)


def _all_threads(rank: Rank) -> NDArray[np.void]:
    """What has ended."""
    records = np.concatenate(list(rank.timeline.threads.values()))
    ended: NDArray[np.void] = records[records["end_ns"] != OPEN]
    return ended


def _by_name(rank: Rank, records: NDArray[np.void]) -> Iterator[tuple[str, NDArray[np.void]]]:
    names = {number: rank.timeline.name(number) for number in np.unique(records["name"]).tolist()}
    for name in sorted(set(names.values())):
        numbers = [number for number, known in names.items() if known == name]
        yield name, records[np.isin(records["name"], numbers)]


def _time(run: Finished, metric: Metric, labels: tuple[str, ...], rank: Rank, records: NDArray[np.void]) -> Made:
    """In counted steps."""
    there, ends = rank.ends_of(records["step"].astype(np.int64))
    if len(there):
        lengths = (records["end_ns"] - records["start_ns"])[there]
        yield counter(metric, labels, ends, lengths, begin_ns=run.begin_ns, unit=NS)
