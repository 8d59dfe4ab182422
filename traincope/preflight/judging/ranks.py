"""Ranks that compute slower than the others, in both rounds."""

from collections.abc import Iterator, Sequence
from statistics import median

from traincope.preflight.judging.findings import Finding, Kind
from traincope.preflight.measurements import Measurements, Quantity, Rate, Round
from traincope.preflight.robust import Limit, slow_ranks

ON_GPUS, ON_CPUS = Limit(ratio=1.1), Limit(ratio=1.4)
"""GPUs of a job differ by a few per cent. Ranks on a CPU share cores with each other and with other processes."""

KINDS = {Quantity.PRODUCTS: Kind.SLOW_PRODUCTS, Quantity.MEMORY: Kind.SLOW_MEMORY}
WORDS = {Quantity.PRODUCTS: "multiplies", Quantity.MEMORY: "copies memory"}
ADVICE = {
    Quantity.PRODUCTS: "Take the host out of the job, or look for thermal or power limits, low clocks and other "
    "processes on it",
    Quantity.MEMORY: "Take the host out of the job, or look for memory errors and other processes on it",
}


def usual_seconds(rate: Rate, round: Round) -> float:
    """Median over the repeats of a round."""
    return median(rate.seconds[round])


def slow_rank_findings(measured: Measurements) -> Iterator[Finding]:
    """One finding for each rank and quantity that both rounds show."""
    limit = ON_GPUS if measured.on_gpus else ON_CPUS
    for quantity in Quantity:
        rates = [rate for rate in measured.rates if rate.quantity is quantity]
        rounds = [_slow(rates, round, limit) for round in Round]
        for rank in sorted(set(rounds[0]) & set(rounds[1])):
            factor = min(slow[rank] for slow in rounds)
            yield Finding(
                kind=KINDS[quantity],
                ranks=(rank,),
                factor=factor,
                evidence=f"rank {rank} {WORDS[quantity]} {factor:.2f} times as long as the median rank, in both rounds",
                advice=ADVICE[quantity],
            )


def _slow(rates: Sequence[Rate], round: Round, limit: Limit) -> dict[int, float]:
    return slow_ranks({rate.rank: usual_seconds(rate, round) for rate in rates}, limit=limit)
