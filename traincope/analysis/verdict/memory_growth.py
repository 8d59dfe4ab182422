"""Finding about ranks whose memory grows steadily."""

from collections.abc import Iterator, Sequence

from traincope.analysis.confidence import HIGH, MEDIUM
from traincope.analysis.memory.census import GrownTensors
from traincope.analysis.memory.uses import MemoryUse
from traincope.analysis.verdict.findings import Finding, FindingKind
from traincope.units import count, size

SPAN_STEPS = 100
"""Number of steps for which the growth is given."""
MAX_NAMED = 4
"""With more growing ranks than this, only the fastest are described."""


def memory_growth(uses: Sequence[MemoryUse], grown: Sequence[GrownTensors] = ()) -> Iterator[Finding]:
    """Yield one finding for each measure that grows, with all its ranks, the fastest first in the evidence.

    `grown`: what the census of live tensors saw. It is a second kind of evidence, of the same ranks.
    """
    leaks = sorted((use for use in uses if use.leak), key=lambda use: -(use.growth_bytes_per_step or 0.0))
    for measure in dict.fromkeys(use.measure for use in leaks):
        yield _growing([use for use in leaks if use.measure == measure], grown)


def _growing(leaks: Sequence[MemoryUse], grown: Sequence[GrownTensors]) -> Finding:
    """Build the finding of one measure; `leaks` has one entry per rank, the fastest first."""
    ranks = tuple(sorted({use.rank for use in leaks}))
    seen = [each for each in grown if each.rank in ranks]
    named = [f"on rank {use.rank} by {_growth(use)} to {size(use.last_bytes)}" for use in leaks[:MAX_NAMED]]
    more = [f"and on {count(len(ranks) - MAX_NAMED, 'more rank')}"] if len(ranks) > MAX_NAMED else []
    by_step = [use.exhausted_at_step for use in leaks if use.exhausted_at_step is not None]
    exhausted = [f"the memory is exhausted by step {min(by_step)} at the latest"] if by_step else []
    census = [f"the census of rank {seen[0].rank} saw {seen[0].phrase}"] if seen else []
    return Finding(
        kind=FindingKind.MEMORY_GROWTH,
        ranks=ranks,
        confidence=HIGH if {each.rank for each in seen} == set(ranks) else MEDIUM,
        evidence="; ".join(
            [f"{leaks[0].measure} memory grows steadily, " + ", ".join([*named, *more]), *exhausted, *census]
        ),
        advice="Release tensors kept from step to step: sum losses with .item(), and empty lists and caches.",
    )


def _growth(use: MemoryUse) -> str:
    return f"{size(SPAN_STEPS * (use.growth_bytes_per_step or 0.0))} per {SPAN_STEPS} steps"
