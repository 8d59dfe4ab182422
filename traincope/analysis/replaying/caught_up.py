"""Gain of stragglers that do as much work as their peers, step by step."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from traincope.analysis.ledger.ledger import Ledger
from traincope.analysis.replaying.prices import Prices
from traincope.analysis.replaying.replay import Factors
from traincope.analysis.stragglers.own_work import by_step, counted_steps
from traincope.analysis.stragglers.stragglers import Straggler, Stragglers


def with_prices(stragglers: Stragglers, prices: Prices) -> Stragglers:
    """Replace the stragglers' gains by that of a replay in which all of them are as fast as their peers.

    The latest has the whole gain, the others a part of it in proportion to their lateness. Without a replay the gain
    stays the mean lateness.
    """
    if not stragglers.named:
        return stragglers
    removed = {key: each for straggler in stragglers.named for key, each in _removed(straggler, prices.ledger).items()}
    gain = prices.replayed(Factors(by_step=removed))
    if gain is None:
        return stragglers
    latest_ns = max(straggler.late_ns for straggler in stragglers.named)
    named = (replace(each, gain_ratio=gain * each.late_ns / latest_ns) for each in stragglers.named)
    return replace(stragglers, named=tuple(named))


def _removed(straggler: Straggler, ledger: Ledger) -> Mapping[tuple[int, str], Mapping[int, float]]:
    """(Rank, term) -> step -> median of its peers' time relative to its own, at most 1, while it is late."""
    ledgers = {rank.rank: rank for rank in ledger.ranks}
    own, peers = ledgers[straggler.rank], [ledgers[rank] for rank in straggler.peers]
    steps = counted_steps([own, *peers])
    first, last = straggler.pattern.first_step, straggler.pattern.last_step
    late = (steps >= (steps[0] if first is None else first)) & (steps <= (steps[-1] if last is None else last))
    removed = {}
    for excess in straggler.terms:
        own_ns = by_step(own, steps, (excess.term,))
        usual_ns = np.median([by_step(peer, steps, (excess.term,)) for peer in peers], axis=0)
        longer = late & (own_ns > usual_ns)  # false where a rank did not complete the step
        factors = usual_ns[longer] / own_ns[longer]
        removed[straggler.rank, excess.term] = dict(zip(steps[longer].tolist(), factors.tolist(), strict=True))
    return removed
