"""UTILIZATION: the share of the hardware's peak that the model's mathematics used."""

from collections.abc import Iterator, Mapping

from rich.padding import Padding
from rich.text import Text

from traincope.lines import text
from traincope.report.schema import Utilization
from traincope.units import flops, share


def utilization(used: Utilization) -> Iterator[Text | Padding]:
    """One line, and the evidence for it. FLOPs are shown without a peak too: an MFU is then one division away."""
    speed = used["tokens_per_second"]
    head = Text("UTILIZATION", style="bold")
    parts = [] if speed is None else [f"{speed:,.0f} tokens/s"]
    if used["mfu"] is None:
        parts.append(f"MFU unknown: {used['reason']}")
        parts += [] if used["hfu"] is None else [f"HFU {share(used['hfu'])}: all FLOPs of the recorded shapes"]
    else:
        parts.append(f"MFU {share(used['mfu'])} over the counted steps")
    yield head.append_text(text("  " + "; ".join(parts), style="not bold"))
    yield from (Padding(text(line), (0, 0, 0, 4)) for line in evidence(used))


def evidence(used: Utilization) -> Iterator[str]:
    """Lines on peak, FLOPs and the other utilizations, as far as they are known."""
    if used["mfu"] is None:
        if used["model_flops_per_step"] is not None:
            yield from _work(used)
        return
    peaks = ", ".join(f"{flops(peak, 'FLOP/s')} {dtype}" for dtype, peak in (used["peak_flops"] or {}).items())
    yield f"peak: {peaks} per rank, {used['peak_source']}"
    yield from _work(used)
    if used["mfu"] > 1:
        yield "an MFU above 100 % is impossible: the FLOPs or the peak are wrong"
    if used["waterfall"] is not None:
        yield _kernels(used["waterfall"])
    if used["hfu"] is not None:
        yield f"HFU {share(used['hfu'])}: all executed FLOPs, recomputed ones included"
    yield _conventions(used["mfu"], used["mfu_paper"])
    if used["mfu_job"] is None:
        yield f"MFU (job) unknown: {used['mfu_job_reason']}"
    else:
        yield f"MFU (job) {share(used['mfu_job'])}: over the whole job with start-up, restarts and lost steps"


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


def _work(used: Utilization) -> Iterator[str]:
    """Model FLOPs, which are known, and executed FLOPs.

    Redundant are padding, products that several ranks repeat, and products that a kernel repeats.
    """
    yield f"model FLOPs: {flops(used['model_flops_per_step'])} per step {used['flops_convention']}"
    ran, again = used["executed_flops_per_step"], used["recomputed_flops_per_step"]
    redundant = used["redundant_flops_per_step"]
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
