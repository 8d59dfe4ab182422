"""Ranks that were done before the others: out of batches, stopped early, or left by `sys.exit(0)`.

Nothing was wrong with them as far as they know, but who goes on waits for them in the next collective, and
fails or hangs there.
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from traincope.analysis.findings import MEDIUM, Finding
from traincope.events import CLEAN, NO_STEP, Kind, Phase
from traincope.timeline import RankTimeline, Timeline

TRAINING = (Phase.FORWARD, Phase.BACKWARD)


def beside_leavers(finding: Finding, timeline: Timeline, *, failed: Iterable[int]) -> Finding:
    """The finding, of who went first among the `failed` ranks; where others had left before, what it followed from."""
    gone = set(failed)
    trained = {rank.rank: _last_trained(rank) for rank in timeline.ranks}
    reached = max((trained[rank.rank] for rank in timeline.ranks if rank.ending != CLEAN), default=NO_STEP)
    left = [
        rank.rank
        for rank in timeline.ranks
        if rank.ending == CLEAN and rank.rank not in gone and NO_STEP < trained[rank.rank] < reached
    ]
    if not left:
        return finding
    who = f"rank {left[0]}" if len(left) == 1 else f"{len(left)} ranks, rank {left[0]} among them,"
    after = min(trained[rank] for rank in left)
    return replace(
        finding,
        ranks=tuple(sorted({*finding.ranks, *left})),
        confidence=MEDIUM,
        evidence=f"{who} ended cleanly after step {after}, others went on to {reached}; of those {finding.evidence}",
        advice=f"see why {who} had no more to do: fewer batches, an early stop, sys.exit(0); the others wait for it",
    )


def _last_trained(rank: RankTimeline) -> int:
    """The last step in which it ran a forward or a backward."""
    records = rank.of_kind(Kind.PHASE)
    return int(records["step"][np.isin(records["phase"], TRAINING)].max(initial=NO_STEP))
