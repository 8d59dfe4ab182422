"""Findings about a rank whose computation slows down for some steps in a row."""

from collections.abc import Collection, Iterator

from traincope.analysis.confidence import MEDIUM
from traincope.analysis.faults.anomalies.slowness import slow_spells
from traincope.analysis.ledger.ledger import Ledger
from traincope.analysis.stragglers.stretches import Stretch
from traincope.analysis.verdict.findings import Finding, FindingKind, percent
from traincope.analysis.verdict.losses.slowdowns import SLOWS_DOWN
from traincope.timeline import Timeline


def spell_findings(
    timeline: Timeline, ledger: Ledger, *, late: Collection[int], stretches: Collection[Stretch]
) -> Iterator[Finding]:
    """One finding per spell, without a gain: how often it comes back is unknown. `late`: ranks named as stragglers.
    `stretches`: those of a table, which its spells are parts of.
    """
    for spell in slow_spells(timeline, ledger):
        if spell.rank in late or any(spell.rank == each.rank and each.has(spell.first_step) for each in stretches):
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
            advice=SLOWS_DOWN,
        )
