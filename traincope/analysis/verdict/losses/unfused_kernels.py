"""Finding about chains of pointwise and normalisation kernels in kernel traces."""

from collections.abc import Iterator

from traincope.analysis.confidence import MEDIUM
from traincope.analysis.efficiency.work import ENOUGH_COVERAGE
from traincope.analysis.kernels.unfused import Unfused
from traincope.analysis.verdict.findings import MIN_SHARE, Finding, FindingKind, percent
from traincope.events import Phase
from traincope.units import count

COMPILE = "Compile this code with torch.compile, or call a fused kernel for it"
OPTIMIZER = "Give the optimizer fused=True, or foreach=True where it has no fused kernel"
MAX_NAMED_OPERATORS = 6


def unfused_kernels(unfused: Unfused | None) -> Iterator[Finding]:
    """Yield a finding if fusion may save enough step time; without a known saving, if the chains take enough."""
    if unfused is None or not unfused.steps_ns or not unfused.chains:
        return
    share = unfused.in_steps_ns / unfused.steps_ns
    known = unfused.rated_ns >= ENOUGH_COVERAGE * unfused.total_ns
    gain = unfused.saved_in_steps_ns / unfused.steps_ns if known else None
    if (share if gain is None else gain) < MIN_SHARE:
        return
    longest = unfused.chains[0]
    more = len(longest.operators) - MAX_NAMED_OPERATORS
    named = ", ".join(longest.operators[:MAX_NAMED_OPERATORS]) + (f" and {more} more" if more > 0 else "")
    advice = OPTIMIZER if longest.phase == Phase.OPTIMIZER.name.lower() else COMPILE
    yield Finding(
        kind=FindingKind.UNFUSED_KERNELS,
        confidence=MEDIUM,
        evidence=(
            f"{percent(share)} of step time is in {count(unfused.count, 'chain')} of pointwise and normalisation "
            f"kernels; the most in {longest.phase}: {named} ({count(longest.count, 'chain')})"
        ),
        advice=f"{advice}." if gain is None else f"{advice}: this saves at most {percent(gain)} of step time.",
        estimated_gain_ratio=gain,
    )
