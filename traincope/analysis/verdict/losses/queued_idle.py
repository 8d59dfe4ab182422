"""Launch gaps of GPUs whose next kernel was launched long before."""

from dataclasses import replace

from traincope.analysis.confidence import UNKNOWN
from traincope.analysis.verdict.findings import Finding, FindingKind, percent


def not_by_the_host(finding: Finding, queued_idle_ratio: float) -> Finding:
    """Take the cause and the gain from a finding about launch gaps, if the host did not cause most of them.

    `queued_idle_ratio`: share of step time in which GPUs idle although their next work is launched.
    """
    gap = finding.estimated_gain_ratio
    if finding.kind is not FindingKind.LAUNCH_GAP or gap is None or queued_idle_ratio < gap / 2:
        return finding
    return replace(
        finding,
        confidence=UNKNOWN,
        evidence=(
            f"the GPUs idle for {percent(gap)} of step time before their next kernel starts; for "
            f"{percent(queued_idle_ratio)} it is launched already, so that the host is not the cause"
        ),
        advice=(
            "Trace fewer steps, because a full buffer of the profiler loses kernels. If the gaps stay, look for other "
            "processes on the GPUs and for callbacks of the host in their streams."
        ),
        estimated_gain_ratio=None,
    )
