"""Cost of lost time: rank-hours, and money if an hour of a rank's GPU has a price."""

from collections.abc import Mapping
from dataclasses import dataclass

from traincope.analysis.ledger.ledger import Ledger

HOUR_NS = 3_600_000_000_000


def rank_hours(ns: float) -> float:
    """Convert `ns` summed over ranks to rank-hours: an hour of 8 ranks is 8."""
    return ns / HOUR_NS


def price_of(hours: float | None, *, price_per_gpu_hour: float | None) -> float | None:
    """Price of rank-hours, in the currency of the price. One GPU per rank. None if either number is unknown."""
    return None if hours is None or price_per_gpu_hour is None else hours * price_per_gpu_hour


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Rank-hours of each ledger term, over all ranks and steps but the warm-up."""

    wall_hours: float
    """Rank-hours of the steps."""
    hours: Mapping[str, float | None]
    """Term -> rank-hours; None if the source does not measure the term. They sum to wall_hours."""
    price_per_gpu_hour: float | None = None

    @property
    def wall_money(self) -> float | None:
        return price_of(self.wall_hours, price_per_gpu_hour=self.price_per_gpu_hour)

    @property
    def money(self) -> Mapping[str, float | None] | None:
        """Term -> its price; None without a price per GPU-hour."""
        if self.price_per_gpu_hour is None:
            return None
        return {term: price_of(hours, price_per_gpu_hour=self.price_per_gpu_hour) for term, hours in self.hours.items()}


def cost(ledger: Ledger, *, price_per_gpu_hour: float | None = None) -> Cost:
    """Convert each term's ns, summed over ranks and scaled from the counted steps to all, to rank-hours."""
    totals = {term: ledger.total(term) for term in ledger.order}
    return Cost(
        wall_hours=rank_hours(ledger.timed_wall_ns),
        hours={term: None if ns is None else rank_hours(ledger.scale * ns) for term, ns in totals.items()},
        price_per_gpu_hour=price_per_gpu_hour,
    )
