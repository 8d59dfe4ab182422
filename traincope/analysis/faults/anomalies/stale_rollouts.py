"""Rollouts made with weights that are no longer renewed, by the versions that the training logs.

`traincope.log(weights_version=..., rollout_version=...)`: the version that a step trains, and the version that made its
rollouts. Asynchronous training makes them some versions old by plan. A version that stays the same for much longer than
ever before, while the trained one goes on, does not reach the engine any more.
"""

from dataclasses import dataclass

import numpy as np

from traincope.arrays import Floats
from traincope.events import Kind
from traincope.timeline import RankTimeline, Timeline

WEIGHTS_VERSION, ROLLOUT_VERSION = "weights_version", "rollout_version"
"""Names of the logged values."""
MIN_HELD = 20
"""Fewest steps with one version that show that it is not renewed any more."""
LONGER = 3
"""How many times as long as ever before a version must stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleRollouts:
    """Rollouts whose weights stayed the same until the end of the records."""

    ranks: tuple[int, ...]
    """Ranks that log it."""
    version: int
    """The version of the last rollouts, the oldest of these ranks'."""
    lag: int
    """Versions by which it is behind the trained weights."""
    held_steps: int
    """Steps for which the version has not changed."""
    renewed: bool
    """It changed before."""


def stale_rollouts(timeline: Timeline) -> StaleRollouts | None:
    """Find rollouts that are made with weights that are no longer renewed. None if the ranks do not log versions."""
    found = {rank.rank: stale for rank in timeline.ranks if (stale := _of_rank(rank)) is not None}
    if not found:
        return None
    ranks = tuple(sorted(found))
    oldest = max(found.values(), key=lambda each: each.lag)
    return StaleRollouts(
        ranks=ranks,
        version=oldest.version,
        lag=oldest.lag,
        held_steps=max(each.held_steps for each in found.values()),
        renewed=any(each.renewed for each in found.values()),
    )


def _of_rank(rank: RankTimeline) -> StaleRollouts | None:
    weights, rollouts = _logged(rank, WEIGHTS_VERSION), _logged(rank, ROLLOUT_VERSION)
    count = min(len(weights), len(rollouts))
    weights, rollouts = weights[:count], rollouts[:count]
    if count <= MIN_HELD:
        return None
    changes = np.flatnonzero(np.diff(rollouts)) + 1
    held = count - int(changes[-1] if len(changes) else 0)
    before = np.diff(np.append(0, changes))  # steps for which each earlier version stayed
    goes_on = np.count_nonzero(np.diff(weights[-held:])) > 0
    lag = int(weights[-1] - rollouts[-1])
    if held < max(MIN_HELD, LONGER * int(before.max(initial=0))) or not goes_on or lag <= 0:
        return None
    return StaleRollouts(
        ranks=(rank.rank,), version=int(rollouts[-1]), lag=lag, held_steps=held, renewed=len(changes) > 0
    )


def _logged(rank: RankTimeline, name: str) -> Floats:
    """The finite values of that name, in order."""
    records = rank.of_kind(Kind.SCALAR)
    numbers = [number for number, each in enumerate(rank.names) if each == name]
    values: Floats = np.ascontiguousarray(records["value"][np.isin(records["name"], numbers)]).view(np.float64)
    return values[np.isfinite(values)]
