"""Finding about collectives of Python objects: pickling, the bytes on the wire, and the wait for the last rank."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from traincope.analysis.attribution.terms import OBJECTS, exposed_transfer, exposed_wait
from traincope.analysis.communication.axis_operations import AxisOperation
from traincope.analysis.communication.call_sites import Messages
from traincope.analysis.confidence import MEDIUM
from traincope.analysis.ledger.ledger import Ledger
from traincope.analysis.replaying.prices import Prices
from traincope.analysis.replaying.replay import Factors
from traincope.analysis.verdict.findings import MIN_SHARE, Finding, FindingKind, percent, priced
from traincope.events import Phase
from traincope.units import size


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectCollectives:
    """Cost of collectives of objects: shares of step time."""

    shares: Mapping[str, float]
    """Term of the ledger -> its part that they cause. Empty if there are none."""
    finding: Finding | None
    """None if they cost less than a finding needs."""


def object_collectives(
    ledger: Ledger, messages: Sequence[Messages], prices: Prices, *, blamed: Collection[str]
) -> ObjectCollectives:
    """Find what they cost. `blamed`: axes whose waits another finding explains."""
    sent = [each for each in messages if each.phase is Phase.OBJECTS]
    shares = {OBJECTS: ledger.share(OBJECTS) or 0.0}
    for axis in {each.axis for each in sent}:
        ours, all_ = ([each for each in part if each.axis == axis] for part in (sent, messages))
        shares[exposed_transfer(axis)] = _part(ledger, exposed_transfer(axis), _transfers(ours), _transfers(all_))
        if axis not in blamed:
            shares[exposed_wait(axis)] = _part(ledger, exposed_wait(axis), _waits(ours), _waits(all_))
    total = sum(shares.values())
    if not sent or total < MIN_SHARE:
        return ObjectCollectives(shares={}, finding=None)
    left: dict[tuple[int | None, str], float] = {
        (None, term): 1 - share / (ledger.share(term) or share) for term, share in shares.items() if share
    }
    gain = prices.gain(Factors(left), share=total, at_most=True)
    return ObjectCollectives(shares=shares, finding=priced(_finding(ledger, sent, shares), gain, shown=True))


def _finding(ledger: Ledger, sent: Sequence[Messages], shares: Mapping[str, float]) -> Finding:
    total = sum(shares.values())
    transfer, wait = (
        sum(part for term, part in shares.items() if term.startswith(name))
        for name in ("exposed_transfer", "exposed_wait")
    )
    return Finding(
        kind=FindingKind.OBJECT_COLLECTIVES,
        confidence=MEDIUM,
        evidence=(
            f"collectives of Python objects take {percent(total)} of step time: {percent(shares[OBJECTS])} pickling "
            f"and unpickling, {percent(transfer)} transfer, {percent(wait)} wait for the last rank; "
            f"{_places(ledger, sent)}"
        ),
        advice="Send objects every N steps only, or reduce their numbers as one tensor",
        avoidable=True,
    )


def without_objects(comm: Sequence[AxisOperation], others: Sequence[Messages]) -> tuple[AxisOperation, ...]:
    """Operations with only the exposed time of the messages `others`; their bandwidth is that of all, so left out."""
    rows = []
    for row in comm:
        left = [each for each in others if (each.axis, each.operation) == (row.axis, row.operation)]
        exposed_ns = sum(each.exposed_ns for each in left)
        rows.append(replace(row, exposed_ns=exposed_ns, wait_ns=_waits(left), bus_bandwidth=None))
    return tuple(rows)


def _part(ledger: Ledger, term: str, ours_ns: int, all_ns: int) -> float:
    return (ledger.share(term) or 0.0) * ours_ns / all_ns if all_ns > 0 else 0.0


def _transfers(messages: Sequence[Messages]) -> int:
    return sum(each.exposed_ns - each.wait_ns for each in messages)


def _waits(messages: Sequence[Messages]) -> int:
    return sum(each.wait_ns for each in messages)


def _places(ledger: Ledger, sent: Sequence[Messages]) -> str:
    """Say where the most expensive ones are called, and how many bytes they move."""
    num_bytes: dict[str, int] = defaultdict(int)
    cost_ns: dict[str, int] = defaultdict(int)
    for each in sent:
        num_bytes[each.place] += each.num_bytes
        cost_ns[each.place] += each.exposed_ns
    first = max(cost_ns, key=lambda place: cost_ns[place])
    others = len(cost_ns) - 1
    more = f", and {others} more call{'s' if others > 1 else ''}" if others else ""
    return f"{first}, {size(num_bytes[first] / max(ledger.rank_steps, 1))} per step on each rank{more}"
