"""MFU, HFU, pipeline bubble, tokens and run-ahead of each step."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from traincope.analysis.attribution.terms import BUBBLE
from traincope.analysis.efficiency.declared_flops import LOGGED, TOKENS, logged_amounts, positive
from traincope.analysis.efficiency.peaks import rank_peak
from traincope.analysis.efficiency.work import RankWork
from traincope.arrays import Ints
from traincope.metrics import catalogue
from traincope.metrics.labels import expected_bubble
from traincope.metrics.metric import Metric
from traincope.metrics.values.points import NS, Node, Points, RankSteps, sum_by_step, to_ints


def utilization(node: Node) -> Iterator[Points]:
    """Ideal time over wall time of each step. Yields nothing if the report has no such ratio."""
    if node.analysis.utilization.reason is not None:
        return
    sides: tuple[tuple[Metric, Callable[[RankWork], Mapping[str, float] | None]], ...] = (
        (catalogue.MFU, lambda work: work.model),
        (catalogue.MFU_PAPER, lambda work: work.paper),
        (catalogue.HFU, lambda work: work.executed),
    )
    for metric, flops in sides:
        ideal = [_ideal_ns(node, rank, flops(node.analysis.utilization.work.ranks[rank.number])) for rank in node.ranks]
        known = [np.full(len(rank.numbers), ns) for rank, ns in zip(node.ranks, ideal, strict=True) if ns is not None]
        if len(known) == len(ideal):
            times, (best, walls) = sum_by_step(node.ranks, known, _walls(node.ranks))
            yield Points(metric=metric, labels=(), times_ns=times, values=best, wholes=walls.astype(np.int64))


def _ideal_ns(node: Node, rank: RankSteps, flops: Mapping[str, float] | None) -> float | None:
    """Time of a step's FLOPs at the peak of the rank's device."""
    if flops is None:
        return None
    run = node.analysis.timeline.run
    (device,) = (info.info.device for info in run.ranks if info.rank == rank.number)
    peak = rank_peak(device, run.info.settings, dtypes=set(flops)).flops
    return sum(NS * count / peak[dtype] for dtype, count in flops.items())


def bubble(node: Node) -> Iterator[Points]:
    """Bubble and its parts by stage, over replayed steps, and the share that theory expects."""
    pipeline = node.analysis.bubble
    if pipeline is None:
        return
    for stage in pipeline.stages:
        ranks = [rank for rank in node.ranks if rank.number in stage.ranks]
        if ranks and stage.wall_ns:
            columns = [[_term(rank, term) for rank in ranks] for term in BUBBLE]
            times, (walls, *parts) = sum_by_step(ranks, _walls(ranks), *columns)
            replayed = np.any(parts, axis=0)
            wholes = walls[replayed].astype(np.int64)
            idle = np.sum(parts, axis=0)[replayed]
            yield Points(
                metric=catalogue.BUBBLE, labels=(stage.stage,), times_ns=times[replayed], values=idle, wholes=wholes
            )
            for term, part in zip(BUBBLE, parts, strict=True):
                yield Points(
                    metric=catalogue.BUBBLE_PART,
                    labels=(stage.stage, term.partition(".")[2]),
                    times_ns=times[replayed],
                    values=part[replayed],
                    wholes=wholes,
                )
    expected = expected_bubble(pipeline)
    if expected is not None:
        times, _ = sum_by_step(node.ranks)
        yield Points(metric=catalogue.BUBBLE_THEORY, labels=(), times_ns=times, values=np.full(len(times), expected))


def _walls(ranks: Sequence[RankSteps]) -> list[Ints]:
    return [rank.ledger.wall_ns for rank in ranks]


def _term(rank: RankSteps, term: str) -> Ints:
    values = rank.ledger.terms.get(term)
    return np.zeros_like(rank.numbers) if values is None else values


def tokens(node: Node) -> Iterator[Points]:
    """Tokens that the ranks logged, or their share of the declared tokens per step. All new steps count."""
    info = node.analysis.timeline.run.info
    logged = [(rank, step, value) for rank in node.ranks for step, value in _tokens_of(rank)]
    declared = positive(info.settings.get("tokens_per_step"))
    if logged:
        ends = {
            rank.number: dict(zip(rank.numbers.tolist(), rank.ends_ns.tolist(), strict=True)) for rank in node.ranks
        }
        times = to_ints(ends[rank.number][step] for rank, step, _ in logged)
        values = np.array([value for _, _, value in logged], dtype=np.float64)
    elif declared is not None:
        times = np.concatenate([rank.ends_ns[rank.new] for rank in node.ranks])
        values = np.full(len(times), declared / info.world_size)
    else:
        return
    yield Points(metric=catalogue.TOKENS, labels=(), times_ns=times, values=values)


def _tokens_of(rank: RankSteps) -> Iterator[tuple[int, float]]:
    new = set(rank.numbers[rank.new].tolist())
    yield from ((step, n) for step, n in logged_amounts(rank.timeline, LOGGED.format(TOKENS)) if step in new)


def run_ahead(node: Node) -> Iterator[Points]:
    """Median run-ahead of each counted step, on ranks that marks measured."""
    for rank in node.ranks:
        marks = rank.measured.marks
        if marks is None:
            continue
        at, ends = rank.ends_of(marks.step)
        for_step = np.argsort(ends, kind="stable")
        times, first = np.unique(ends[for_step], return_index=True)
        parts = np.split(marks.ahead_ns[at][for_step], first[1:]) if len(times) else []
        medians = np.array([np.median(part) for part in parts], dtype=np.float64)
        yield Points(metric=catalogue.RUN_AHEAD, labels=(rank.number,), times_ns=times, values=medians / NS)
