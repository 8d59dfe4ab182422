"""What the ledger's terms cost: rank-hours, and money where an hour of a rank's GPU has a price."""

from collections.abc import Mapping
from dataclasses import dataclass

from traincope.analysis.ledger import Ledger

HOUR_NS = 3_600_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Over all ranks and counted steps."""

    wall_hours: float
    """Rank-hours: an hour of 8 ranks is 8."""
    hours: Mapping[str, float | None]
    """Term -> rank-hours; None where the source cannot see it. They sum to wall_hours."""
    price_per_gpu_hour: float | None = None
    """In whatever currency it was given; a rank has one GPU."""

    @property
    def wall_money(self) -> float | None:
        return self._money(self.wall_hours)

    @property
    def money(self) -> Mapping[str, float | None] | None:
        """Term -> its price; None where none was given."""
        if self.price_per_gpu_hour is None:
            return None
        return {term: self._money(hours) for term, hours in self.hours.items()}

    def _money(self, hours: float | None) -> float | None:
        return None if hours is None or self.price_per_gpu_hour is None else hours * self.price_per_gpu_hour


def cost(ledger: Ledger, *, price_per_gpu_hour: float | None = None) -> Cost:
    """Rank-hours of each term: its ns over all ranks."""
    return Cost(
        wall_hours=ledger.wall_ns / HOUR_NS,
        hours={term: None if (ns := ledger.total(term)) is None else ns / HOUR_NS for term in ledger.order},
        price_per_gpu_hour=price_per_gpu_hour,
    )
