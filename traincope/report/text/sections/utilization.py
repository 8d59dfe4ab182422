"""UTILIZATION: the share of the hardware's peak that the model's mathematics used."""

from collections.abc import Iterator, Mapping

from rich.padding import Padding
from rich.text import Text

from traincope.analysis import Utilization
from traincope.analysis.efficiency.utilization import Ratios
from traincope.analysis.efficiency.work import JobWork
from traincope.lines import text
from traincope.units import flops, share


def utilization(used: Utilization) -> Iterator[Text | Padding]:
    """One line, and the evidence for it. FLOPs are shown without a peak too: an MFU is then one division away."""
    speed, ratios = used.tokens_per_second, used.ratios
    head = Text("UTILIZATION", style="bold")
    parts = [] if speed is None else [f"{speed:,.0f} tokens/s"]
    if ratios.mfu is None:
        parts.append(f"MFU unknown: {used.reason}")
        parts += [] if ratios.hfu is None else [f"HFU {share(ratios.hfu)}: all FLOPs of the recorded shapes"]
    else:
        parts.append(f"MFU {share(ratios.mfu)} over the counted steps")
    yield head.append_text(text("  " + "; ".join(parts), style="not bold"))
    yield from (Padding(text(line), (0, 0, 0, 4)) for line in evidence(used))


def evidence(used: Utilization) -> Iterator[str]:
    """Lines on peak, FLOPs and the other utilizations, as far as they are known."""
    if used.peak is not None and used.ratios.mfu is not None:
        peaks = ", ".join(f"{flops(peak, 'FLOP/s')} {dtype}" for dtype, peak in used.peak.flops.items())
        yield f"peak: {peaks} per rank, {used.peak.origin}"
    if used.work.model is not None:
        yield from _work(used.work, used.work.model)
    if used.ratios.mfu is not None:
        yield from _ratios(used.ratios, used.ratios.mfu, job_reason=used.job_reason)


def _ratios(ratios: Ratios, mfu: float, *, job_reason: str | None) -> Iterator[str]:
    if mfu > 1:
        yield "an MFU above 100 % is impossible: the FLOPs or the peak are wrong"
    if ratios.waterfall is not None:
        yield _kernels(ratios.waterfall)
    if ratios.hfu is not None:
        yield f"HFU {share(ratios.hfu)}: all executed FLOPs, recomputed ones included"
    yield _conventions(mfu, ratios.mfu_paper)
    if ratios.mfu_job is None:
        yield f"MFU (job) unknown: {job_reason}"
    else:
        yield f"MFU (job) {share(ratios.mfu_job)}: over the whole job with start-up, restarts and lost steps"


def _conventions(halved: float, whole: float | None) -> str:
    """The MFU in both published conventions, to compare with the number that a trainer prints."""
    if whole is None:
        return "MFU (paper) unknown: the declared FLOPs do not say whether causal attention is whole or halved"
    if whole == halved:
        return f"MFU (paper) {share(whole)}: the same, because no causal attention was counted"
    return (
        f"MFU (paper) {share(whole)}: causal attention whole, as PaLM, nanoGPT and torchtitan print it; halved, as "
        f"Megatron-LM and MaxText do, {share(halved)}"
    )


def _work(work: JobWork, model: float) -> Iterator[str]:
    """Model FLOPs, which are known, and executed FLOPs.

    Redundant are padding, products that several ranks repeat, and products that a kernel repeats.
    """
    yield f"model FLOPs: {flops(model)} per step {work.convention}"
    ran, again, redundant = work.executed, work.recomputed, work.redundant
    if ran and again is not None and redundant is None:
        yield (
            f"executed FLOPs: only {flops(ran)} were counted, and HFU uses them; the declared FLOPs are too high, or "
            "some kernels are not counted"
        )
    elif ran and again is not None and redundant is not None:
        parts = f"{share(again / ran)} recomputed and {share(redundant / ran)} redundant"
        yield f"executed FLOPs: {flops(ran)} per step, {parts}"


def _kernels(waterfall: Mapping[str, float | None]) -> str:
    """The time of forward and backward, split into ideal, redundant compute and kernel inefficiency."""
    again = waterfall["redundant_compute"]
    redundant = f"{share(again)} redundant compute, " if again else ""
    lost = share(waterfall["kernel_inefficiency"])
    ideal = share(waterfall["ideal"])
    return f"forward and backward, of step time: {ideal} the model at peak, {redundant}{lost} kernel inefficiency"
