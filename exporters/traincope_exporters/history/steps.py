"""Series of steps: how long they took, what of, and how well the hardware was used in them."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from traincope.analysis.amounts import LOGGED, TOKENS
from traincope.analysis.peaks import rank_peak
from traincope.analysis.terms import BUBBLE
from traincope.analysis.told import positive
from traincope.analysis.work import RankWork
from traincope.events import Kind
from traincope.metrics import RANK_LABELS, Metric
from traincope_exporters.history.finished import NS, Finished, Rank, by_step
from traincope_exporters.history.series import Ints, Series, counter, gauge, histogram
from traincope_exporters.telling import expected_bubble, term_and_axis

Made = Iterator[Series]


def steps_done(run: Finished, metric: Metric) -> Made:
    for labels, (rank,) in run.groups(RANK_LABELS):
        ones = np.ones(len(rank.numbers), dtype=np.int64)
        yield counter(metric, labels, rank.ends_ns, ones, begin_ns=run.begin_ns, unit=1)


def last_step(run: Finished, metric: Metric) -> Made:
    for labels, (rank,) in run.groups(RANK_LABELS):
        yield gauge(metric, labels, rank.ends_ns, rank.numbers)


def step_duration(run: Finished, metric: Metric) -> Made:
    for labels, (rank,) in run.groups(RANK_LABELS):
        yield gauge(metric, labels, rank.ends_ns, rank.ledger.wall_ns / NS)


def step_times(run: Finished, metric: Metric) -> Made:
    for labels, ranks in run.groups(metric.labels):
        ends = np.concatenate([rank.ends_ns[rank.ledger.counted] for rank in ranks])
        walls = np.concatenate([rank.ledger.wall_ns[rank.ledger.counted] for rank in ranks])
        yield histogram(metric, labels, ends, walls, begin_ns=run.begin_ns, unit=NS)


def wall(run: Finished, metric: Metric) -> Made:
    for labels, (rank,) in run.groups(RANK_LABELS):
        yield _of_counted(run, metric, labels, rank, rank.ledger.wall_ns)


def ledger(run: Finished, metric: Metric) -> Made:
    """Terms that took no time are left out."""
    for labels, (rank,) in run.groups(RANK_LABELS):
        for (term, axis), values in _terms(rank).items():
            if values[rank.ledger.counted].any():
                yield _of_counted(run, metric, (*labels, term, axis), rank, values)


def _terms(rank: Rank) -> Mapping[tuple[str, str], Ints]:
    """(Term, axis) -> ns of each step."""
    sums: dict[tuple[str, str], Ints] = {}
    for term, values in rank.ledger.terms.items():
        if values is not None:
            key = term_and_axis(term)
            sums[key] = sums.get(key, np.zeros_like(values)) + values
    return sums


def _of_counted(run: Finished, metric: Metric, labels: tuple[str, ...], rank: Rank, values: Ints) -> Series:
    counted = rank.ledger.counted
    return counter(metric, labels, rank.ends_ns[counted], values[counted], begin_ns=run.begin_ns, unit=NS)


def own_time(run: Finished, metric: Metric) -> Made:
    for labels, ranks in run.groups(metric.labels):
        ends = np.concatenate([rank.ends_ns for rank in ranks])
        own = np.array([step.own_ns for rank in ranks for step in rank.timeline.steps], dtype=np.int64)
        yield counter(metric, labels, ends, own, begin_ns=run.begin_ns, unit=NS)


def mfu(run: Finished, metric: Metric) -> Made:
    yield from _rated(run, metric, lambda work: work.model)


def mfu_paper(run: Finished, metric: Metric) -> Made:
    yield from _rated(run, metric, lambda work: work.paper)


def hfu(run: Finished, metric: Metric) -> Made:
    yield from _rated(run, metric, lambda work: work.executed)


def _rated(run: Finished, metric: Metric, flops: Callable[[RankWork], Mapping[str, float] | None]) -> Made:
    """Ideal time over wall time of each step; nothing where the report has no such ratio."""
    used = run.analysis.utilization
    if used.reason is not None:
        return
    for labels, ranks in run.groups(metric.labels):
        ideal = [_ideal_ns(run, rank, flops(used.work.ranks[rank.number])) for rank in ranks]
        if all(one is not None for one in ideal):
            spread = [np.full(len(rank.numbers), round(one or 0)) for rank, one in zip(ranks, ideal, strict=True)]
            times, (best, walls) = by_step(ranks, spread, [rank.ledger.wall_ns for rank in ranks])
            yield gauge(metric, labels, times, best / np.maximum(walls, 1))


def _ideal_ns(run: Finished, rank: Rank, flops: Mapping[str, float] | None) -> float | None:
    """What they take at the peak of this rank's device."""
    if flops is None:
        return None
    recorded = run.analysis.timeline.run
    (device,) = (one.info.device for one in recorded.ranks if one.rank == rank.number)
    peak = rank_peak(device, recorded.info.settings, dtypes=set(flops)).flops
    return sum(NS * count / peak[dtype] for dtype, count in flops.items())


def bubble(run: Finished, metric: Metric) -> Made:
    for labels, ranks in run.groups(metric.labels):
        parts = [sum((_part(rank, term) for term in BUBBLE), np.zeros_like(rank.numbers)) for rank in ranks]
        yield from _share(run, metric, labels, ranks, parts)


def bubble_part(run: Finished, metric: Metric) -> Made:
    for labels, ranks in run.groups(metric.labels):
        for term in BUBBLE:
            part = (*labels, term.partition(".")[2])
            yield from _share(run, metric, part, ranks, [_part(rank, term) for rank in ranks])


def _part(rank: Rank, term: str) -> Ints:
    values = rank.ledger.terms.get(term)
    return np.zeros_like(rank.numbers) if values is None else values


def _share(run: Finished, metric: Metric, labels: tuple[str, ...], ranks: list[Rank], parts: list[Ints]) -> Made:
    if run.analysis.bubble is not None:
        times, (idle, walls) = by_step(ranks, parts, [rank.ledger.wall_ns for rank in ranks])
        yield gauge(metric, labels, times, idle / np.maximum(walls, 1))


def bubble_theory(run: Finished, metric: Metric) -> Made:
    found = run.analysis.bubble
    expected = None if found is None else expected_bubble(found)
    if expected is not None:
        for labels, ranks in run.groups(metric.labels):
            times, _ = by_step(ranks)
            yield gauge(metric, labels, times, np.full(len(times), expected))


def tokens(run: Finished, metric: Metric) -> Made:
    """What the ranks logged of their own; else their share of what was told of every step."""
    told = positive(run.analysis.timeline.run.info.settings.get("tokens_per_step"))
    size = run.analysis.timeline.run.info.world_size
    for labels, ranks in run.groups(metric.labels):
        logged = [_logged_tokens(rank) for rank in ranks]
        times = np.concatenate([at for at, _ in logged])
        added = np.concatenate([values for _, values in logged])
        if not len(times) and told is not None:
            times = np.concatenate([rank.ends_ns for rank in ranks])
            added = np.full(len(times), told / size)
        if len(times):
            yield counter(metric, labels, times, added, begin_ns=run.begin_ns, unit=1)


def _logged_tokens(rank: Rank) -> tuple[Ints, Ints]:
    records = rank.timeline.of_kind(Kind.SCALAR)
    wanted = [n for n in np.unique(records["name"]).tolist() if rank.timeline.name(n) == LOGGED.format(TOKENS)]
    chosen = records[np.isin(records["name"], wanted)]
    values = np.ascontiguousarray(chosen["value"]).view(np.float64)
    finite = np.isfinite(values)
    return chosen["start_ns"][finite], values[finite].astype(np.int64)
