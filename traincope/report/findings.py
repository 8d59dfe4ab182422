"""A finding -> its part of a document, and what following its advice saves."""

from traincope.analysis import Finding, rank_hours
from traincope.report import schema


def finding_of(finding: Finding, *, wall_ns: int) -> schema.Finding:
    """`wall_ns`: of all ranks and counted steps of its run; where that is 0 nothing tells what it saves in hours."""
    gain = finding.estimated_gain_ratio
    return schema.Finding(
        kind=finding.kind.value,
        ranks=list(finding.ranks),
        steps=list(finding.steps),
        confidence=finding.confidence,
        evidence=finding.evidence,
        advice=finding.advice,
        estimated_gain_ratio=gain,
        estimated_gain_rank_hours=None if gain is None or not wall_ns else rank_hours(gain * wall_ns),
        estimated_gain_money=None,
    )
