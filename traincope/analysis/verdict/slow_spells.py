"""Findings about a rank whose computation slows down for some steps in a row."""

from collections.abc import Collection, Iterator

from traincope.analysis.confidence import MEDIUM
from traincope.analysis.faults.anomalies.slowness import slow_spells
from traincope.analysis.ledger.ledger import Ledger
from traincope.analysis.verdict.findings import Finding, FindingKind, percent
from traincope.timeline import Timeline

ADVICE = (
    "Look for what began on the rank's host at that step (other processes, a job's start, heat), and for longer inputs."
)


def spell_findings(timeline: Timeline, ledger: Ledger, *, late: Collection[int]) -> Iterator[Finding]:
    """One finding per spell, without a gain: how often it comes back is unknown. `late`: ranks named as stragglers."""
    for spell in slow_spells(timeline, ledger):
        if spell.rank in late:
            continue
        low, high = (f"{times:.1f}" for times in spell.times)
        times = low if low == high else f"{low} to {high}"
        yield Finding(
            kind=FindingKind.SLOW_STEP,
            ranks=(spell.rank,),
            steps=tuple(range(spell.first_step, spell.last_step + 1)),
            confidence=MEDIUM,
            evidence=(
                f"rank {spell.rank} slows down in steps {spell.first_step} to {spell.last_step}: {spell.num_slow} of "
                f"them take {times} times the median by its computation, which costs {percent(spell.lost_ratio)} of "
                "the time of all steps"
            ),
            advice=ADVICE,
        )
