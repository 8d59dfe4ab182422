"""Slow links, and ranks whose messages are all slow, from two rounds of pairing.

A pair is compared with pairs of the same class: both ranks on one host, or on two. The usual time of a class is the
median over its ranks of the rank's fastest pair, because one slow rank of four makes half of all pairs slow.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from statistics import median

from traincope.preflight.judging.findings import Finding, Kind
from traincope.preflight.measurements import Measurements, PairTime, Round
from traincope.preflight.pairing import Pair
from traincope.preflight.robust import MIN_PEERS, Limit, median_deviation
from traincope.units import duration, numbers, size

ON_GPUS, ON_CPUS = Limit(ratio=1.5, seconds=20e-6), Limit(ratio=2.0, seconds=2e-3)
"""gloo's messages wait for a core that other processes may have, some milliseconds long."""
ALL_OF_A_RANK = 0.75
"""Share of a rank's pairs that must be slow for the rank to be the cause."""


class Way(StrEnum):
    """Class of a pair."""

    WITHIN = "within a host"
    BETWEEN = "between hosts"


def suspects(measured: Measurements) -> tuple[Pair, ...]:
    """Pairs that the first round shows as slow."""
    return tuple(sorted(slow_pairs(measured, Round.FIRST)))


def slow_pairs(measured: Measurements, round: Round) -> dict[Pair, tuple[float, PairTime]]:
    """Pair -> largest multiple of its class's usual time, and the message of it, in one round.

    Usual times come from the first round, which has all pairs. A class needs MIN_PEERS pairs.
    """
    limit = ON_GPUS if measured.on_gpus else ON_CPUS
    usual = _usual(measured)
    result: dict[Pair, tuple[float, PairTime]] = {}
    for each in measured.pairs:
        known = usual.get((way(measured, each.ranks), each.num_bytes))
        if each.round is not round or known is None:
            continue
        seconds = median(each.seconds)
        factor = seconds / known[0]
        if limit.exceeded(seconds, usual=known[0], deviation=known[1]):
            result[each.ranks] = max(result.get(each.ranks, (0.0, each)), (factor, each), key=lambda worst: worst[0])
    return result


def way(measured: Measurements, ranks: Pair) -> Way:
    return Way.WITHIN if measured.host(ranks[0]) == measured.host(ranks[1]) else Way.BETWEEN


def link_findings(measured: Measurements) -> Iterator[Finding]:
    """One finding for each rank, or link, that explains pairs which both rounds show as slow."""
    first, second = slow_pairs(measured, Round.FIRST), slow_pairs(measured, Round.SECOND)
    rest = {each: second[each] for each in first if each in second}
    again = {each.ranks for each in measured.pairs if each.round is Round.SECOND}
    for rank, kind in _slow_ranks(measured, rest, slow=set(second), again=again):
        own = {each: rest.pop(each) for each in _of_rank(measured, tuple(rest), rank, kind)}
        factor = median(found[0] for found in own.values())
        yield Finding(
            kind=Kind.SLOW_MESSAGES,
            ranks=(rank,),
            factor=factor,
            evidence=f"messages of rank {rank} {kind} take {factor:.1f} times the usual time with "
            f"{numbers([other for each in own for other in each if other != rank], 'rank')}, in both rounds",
            advice="Take the host out of the job, or check its network link" if kind is Way.BETWEEN else _WITHIN,
        )
    for ranks, (factor, worst) in sorted(rest.items()):
        yield Finding(
            kind=Kind.SLOW_LINK,
            ranks=ranks,
            factor=factor,
            evidence=f"a message of {size(worst.num_bytes)} between ranks {ranks[0]} and {ranks[1]} takes "
            f"{duration(1e9 * median(worst.seconds))}, {factor:.1f} times the usual time, in both rounds"
            + _with_others(measured, ranks, slow=set(second), again=again),
            advice="Check the cable and the switch ports between the two hosts, or place the ranks on other hosts"
            if way(measured, ranks) is Way.BETWEEN
            else _WITHIN,
        )


def _with_others(measured: Measurements, ranks: Pair, *, slow: set[Pair], again: set[Pair]) -> str:
    """State whether the second round shows both ranks as fast with other partners of the same class."""
    kind = way(measured, ranks)
    others = [{each for each in _of_rank(measured, again, rank, kind) if each != ranks} for rank in ranks]
    if all(of_rank - slow for of_rank in others):
        return "; each of them is fast with others"
    unmeasured = [rank for rank, of_rank in zip(ranks, others, strict=True) if not of_rank]
    if unmeasured:
        return f"; no other pair {kind} of {numbers(unmeasured, 'rank')} was measured in the second round"
    return ""


_WITHIN = "Check the links between the GPUs of the host (nvidia-smi nvlink --status), or take the host out of the job"


def _usual(measured: Measurements) -> Mapping[tuple[Way, int], tuple[float, float]]:
    """(class, bytes) -> usual seconds, and the median absolute deviation of the ranks' fastest pairs."""
    fastest: dict[tuple[Way, int], dict[int, float]] = defaultdict(dict)
    pairs: Counter[tuple[Way, int]] = Counter()
    for each in measured.pairs:
        if each.round is Round.FIRST:
            key, seconds = (way(measured, each.ranks), each.num_bytes), median(each.seconds)
            pairs[key] += 1
            for rank in each.ranks:
                fastest[key][rank] = min(fastest[key].get(rank, seconds), seconds)
    return {
        key: (median(of_ranks.values()), median_deviation(list(of_ranks.values())))
        for key, of_ranks in fastest.items()
        if pairs[key] >= MIN_PEERS
    }


def _slow_ranks(
    measured: Measurements, confirmed: Mapping[Pair, object], *, slow: set[Pair], again: set[Pair]
) -> Sequence[tuple[int, Way]]:
    """Ranks of which nearly all pairs of the second round are slow, at least two; each with the class of the pairs.

    `slow`: pairs that the second round shows as slow; `again`: all that it measured. A rank must explain a pair of
    `confirmed`, and a pair that one rank explains does not count for its other rank.
    """
    result, unexplained = [], set(confirmed)
    while unexplained:
        counts = Counter((rank, way(measured, each)) for each in unexplained for rank in each)
        explaining = [key for key in counts if _is_slow(_of_rank(measured, again, *key), slow)]
        if not explaining:
            break
        rank, kind = max(explaining, key=lambda key: (counts[key], -key[0]))
        result.append((rank, kind))
        unexplained -= set(_of_rank(measured, unexplained, rank, kind))
    return result


def _of_rank(measured: Measurements, pairs: Collection[Pair], rank: int, kind: Way) -> list[Pair]:
    return [each for each in pairs if rank in each and way(measured, each) is kind]


def _is_slow(own: Collection[Pair], slow: set[Pair]) -> bool:
    number = sum(each in slow for each in own)
    return number >= 2 and number >= ALL_OF_A_RANK * len(own)
