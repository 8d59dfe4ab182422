"""Findings about kernels: forward and backward far below peak, and chains that could be one kernel each."""

from collections.abc import Iterator

from traincope.analysis.confidence import MEDIUM
from traincope.analysis.efficiency.utilization import Ratios
from traincope.analysis.efficiency.work import ENOUGH_COVERAGE
from traincope.analysis.kernels.kernel_classes import Family
from traincope.analysis.kernels.kernels import Kernels, Source
from traincope.analysis.kernels.unfused import Unfused
from traincope.analysis.verdict.findings import MIN_SHARE, Finding, FindingKind, percent, with_gain
from traincope.events import Phase
from traincope.units import count

COMPILE = "Compile this code with torch.compile, or call a fused kernel for it"
OPTIMIZER = "Give the optimizer fused=True, or foreach=True where it has no fused kernel"
MAX_NAMED_OPERATORS = 6
USUAL_OF_PEAK = 0.5
"""Share of peak in forward and backward that well-tuned trainings reach: over whole steps, with all losses, published
ones of large models reach 38 to 57 % (Megatron-LM, SC21, tables 1 and 2; Llama 3, table 4).
"""
TRACE = "Record the kernels of a step (traincope run --level 3) to see which they are"
LARGER = (
    "Make the matrix products larger (batch, sequences per rank, less tensor parallelism), and use bf16 or fp8 where "
    "they do not yet"
)
FEWER = "Fuse what is no matrix product (torch.compile, fused norms, losses and optimizers)"


def kernels_below_peak(ratios: Ratios, kernels: Kernels | None, *, by_marks: bool) -> Iterator[Finding]:
    """Yield a finding if forward and backward reach less of the peak than well-tuned ones. No gain is known: which part
    of it can be reached depends on the model. `by_marks`: time without a kernel within these phases is part of it.
    """
    shares = ratios.waterfall or {}
    ideal, lost = shares.get("ideal"), shares.get("kernel_inefficiency")
    if ideal is None or lost is None or lost < MIN_SHARE:
        return
    at_peak = ideal + (shares["redundant_compute"] or 0.0)
    of_peak = at_peak / (at_peak + lost)
    if of_peak >= USUAL_OF_PEAK:
        return
    traced = _traced_products(kernels)
    idle = " or of gaps between them" if by_marks and traced is None else ""
    yield Finding(
        kind=FindingKind.KERNEL_INEFFICIENCY,
        confidence=MEDIUM,
        evidence=(
            f"forward and backward reach {percent(of_peak)} of peak: {percent(lost)} of step time is that of kernels "
            f"below peak{idle}{'' if traced is None else traced[0]}"
        ),
        advice=f"{TRACE if traced is None else traced[1]}.",
    )


def _traced_products(kernels: Kernels | None) -> tuple[str, str] | None:
    """Return what traced matrix products and other computing kernels take, and the advice; None without rated ones."""
    on_device = kernels is not None and kernels.source is Source.DEVICE
    classes = [each for each in kernels.classes if each.family is Family.COMPUTE] if kernels and on_device else []
    rated = [each.rated for each in classes if each.rated is not None]
    took_ns, total_ns = sum(each.took_ns for each in rated), sum(each.total_ns for each in classes)
    if not took_ns:
        return None
    share, of_peak = took_ns / total_ns, sum(each.ideal_ns for each in rated) / took_ns
    others = [each.name for each in classes if each.rated is None][:2]
    besides = f"; the rest is mostly {' and '.join(others)}" if others else ""
    advice = FEWER if (1 - share) > share * (1 - of_peak) else LARGER
    products = f"Traced matrix products take {percent(share)} of the kernels' time at {percent(of_peak)} of peak"
    return f". {products}{besides}", advice


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
        advice=f"{advice}." if gain is None else with_gain(advice, gain, at_most=True),
        estimated_gain_ratio=gain,
        gain_at_most=gain is not None,
    )
