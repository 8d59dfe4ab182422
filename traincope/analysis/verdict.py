"""The verdict: deaths first, then what costs most; or that all is well."""

from traincope.analysis.bubble import Bubble
from traincope.analysis.comm import AxisOperation
from traincope.analysis.deaths import deaths
from traincope.analysis.findings import MEDIUM, UNKNOWN, WORTH_SAYING, Finding, FindingKind, percent
from traincope.analysis.ledger import Ledger
from traincope.analysis.losses import losses
from traincope.analysis.roots import Root
from traincope.analysis.stragglers import Stragglers
from traincope.analysis.terms import COMPUTE
from traincope.timeline import Timeline


def verdict(
    timeline: Timeline,
    ledger: Ledger,
    bubble: Bubble | None,
    comm: tuple[AxisOperation, ...],
    stragglers: Stragglers,
    roots: tuple[Root, ...] = (),
) -> tuple[Finding, ...]:
    """Ordered findings, the gravest first; never empty."""
    found = list(deaths(timeline))
    if not ledger.wall_ns:
        return (*found, _no_steps())
    found += losses(ledger, bubble, comm, stragglers, roots)
    return tuple(found) or (_healthy(ledger),)


def _no_steps() -> Finding:
    return Finding(
        kind=FindingKind.NO_STEPS,
        confidence=UNKNOWN,
        evidence="no complete training step was recorded, so there is nothing to say about time",
        advice="let it run for at least two steps; call run.step() once an iteration if steps are not found",
    )


def _healthy(ledger: Ledger) -> Finding:
    compute = sum(ledger.share(term) or 0.0 for term in COMPUTE)
    return Finding(
        kind=FindingKind.HEALTHY,
        confidence=MEDIUM,
        evidence=f"{percent(compute)} of a step is compute, and no loss takes {percent(WORTH_SAYING)} of it",
        advice="",
    )
