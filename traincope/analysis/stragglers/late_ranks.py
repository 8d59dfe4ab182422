"""Exposed wait by the rank that joined last, directly: wait chains are not followed."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from traincope.analysis.attribution.stalls import StallTotal


@dataclass(frozen=True, slots=True, kw_only=True)
class LateRanks:
    """Exposed wait of all ranks in counted steps."""

    waits_ns: Mapping[str, Mapping[int | None, int]] = field(default_factory=dict)
    """Axis -> rank that joined last (None: unknown) -> ns that the others waited. Without zeros."""


def late_ranks(stall_totals: Iterable[tuple[StallTotal, ...]]) -> LateRanks:
    """Sum the waits of all ranks' stalls."""
    waits: dict[str, dict[int | None, int]] = defaultdict(lambda: defaultdict(int))
    for stall in (stall for rank in stall_totals for stall in rank if stall.wait_ns):
        waits[stall.axis][None if stall.last < 0 else stall.last] += stall.wait_ns
    return LateRanks(waits_ns={axis: dict(by_rank) for axis, by_rank in waits.items()})
