"""Finding about ranks whose memory grows steadily."""

from collections.abc import Iterator, Sequence

from traincope.analysis.confidence import HIGH, MEDIUM
from traincope.analysis.memory.census import GrownTensors
from traincope.analysis.memory.uses import MemoryUse
from traincope.analysis.verdict.findings import Finding, FindingKind
from traincope.events import MemoryMeasure
from traincope.units import count, duration, size

RELEASE = "Release tensors kept from step to step: sum losses with .item(), and empty lists and caches."
DETACH = (
    "Keep no tensor with its graph from step to step: keep loss.item() or loss.detach(), which frees what the graph of "
    "its step holds."
)
FORGET = (
    "Let the Dataset keep no sample that a worker has read: each worker has its own copy, which grows until it ends. "
    "Without persistent_workers, new workers start in each epoch."
)
SPAN_STEPS = 100
"""Number of steps for which the growth is given."""
HOUR_NS = 3_600 * 10**9
LONG_NS = 30 * 24 * HOUR_NS
"""Time until the memory is exhausted from which a growth is no finding."""
MAX_NAMED = 4
"""With more growing ranks than this, only the fastest are described."""


def memory_growth(uses: Sequence[MemoryUse], grown: Sequence[GrownTensors] = ()) -> Iterator[Finding]:
    """Yield one finding for each measure that grows, with all its ranks, the fastest first in the evidence.

    A growth that leaves the memory enough for `LONG_NS` is none: hardly a run lasts as long.
    `grown`: what the census of live tensors saw. It is a second kind of evidence, of the same ranks.
    """
    ending = (use for use in uses if use.leak and (use.exhausted_in_ns is None or use.exhausted_in_ns <= LONG_NS))
    leaks = sorted(ending, key=lambda use: -(use.growth_bytes_per_step or 0.0))
    for measure in dict.fromkeys(use.measure for use in leaks):
        yield _growing([use for use in leaks if use.measure == measure], grown)


def _growing(leaks: Sequence[MemoryUse], grown: Sequence[GrownTensors]) -> Finding:
    """Build the finding of one measure; `leaks` has one entry per rank, the fastest first."""
    ranks = tuple(sorted({use.rank for use in leaks}))
    of_workers = leaks[0].measure == MemoryMeasure.LOADER_WORKERS
    subject = "memory of the loader workers" if of_workers else f"{leaks[0].measure} memory"
    seen = [each for each in grown if each.rank in ranks and not of_workers]
    named = [f"on rank {use.rank} by {_growth(use)} to {size(use.last_bytes)}" for use in leaks[:MAX_NAMED]]
    more = [f"and on {count(len(ranks) - MAX_NAMED, 'more rank')}"] if len(ranks) > MAX_NAMED else []
    ends = [(use.exhausted_in_ns, use.exhausted_at_step) for use in leaks if use.exhausted_in_ns is not None]
    exhausted = [_exhausted(*min(ends))] if ends else []
    of_rank = [each for each in seen if each.rank == seen[0].rank]
    named_groups = [*of_rank[:1], *[each for each in of_rank[1:] if each.held_by is not None][:1]]
    saw = " and ".join(each.phrase for each in named_groups)
    census = [f"the census of rank {seen[0].rank} saw {saw}"] if seen else []
    return Finding(
        kind=FindingKind.MEMORY_GROWTH,
        ranks=ranks,
        confidence=HIGH if {each.rank for each in seen} == set(ranks) else MEDIUM,
        evidence="; ".join([f"{subject} grows steadily, " + ", ".join([*named, *more]), *exhausted, *census]),
        advice=FORGET if of_workers else DETACH if any(each.has_graph for each in seen) else RELEASE,
    )


def _exhausted(in_ns: int, at_step: int | None) -> str:
    left = duration(in_ns) if in_ns < HOUR_NS else f"{in_ns / HOUR_NS:,.1f} hours"
    return f"at this rate the memory is exhausted in {left}, by step {at_step:,} at the latest"


def _growth(use: MemoryUse) -> str:
    return f"{size(SPAN_STEPS * (use.growth_bytes_per_step or 0.0))} per {SPAN_STEPS} steps"
