"""Utilization: the share of the hardware's peak that the model's mathematics used."""

from collections.abc import Iterator
from typing import Any

from traincope.report.schema import Document
from traincope.report.sections.forms import Form
from traincope.report.sections.section import Lines, Number, Path, Section, Words, number, separated
from traincope.units import flops

NAME, TITLE = "utilization", "Utilization"


def utilization(document: Document) -> Section:
    """Speed and MFU, and the evidence. FLOPs are shown without a peak too: an MFU is then one division away."""
    used = document["utilization"]
    evidence = Lines(tuple(_evidence(used)), facts=True)
    return Section(name=NAME, title=TITLE, lead=separated(_lead(used), "; "), parts=(evidence,))


def _number(key: str, *, form: Form = "share", per: Path | None = None) -> Number:
    return number("utilization", key, form=form, per=per)


def _lead(used: Any) -> Iterator[Words]:
    if used["tokens_per_second"] is not None:
        yield _number("tokens_per_second", form="count"), " tokens/s"
    if used["mfu"] is not None:
        yield "MFU ", _number("mfu"), " over the counted steps"
        return
    yield f"MFU unknown: {used['reason']}"
    if used["hfu"] is not None:
        yield "HFU ", _number("hfu"), ": all FLOPs of the recorded shapes"


def _evidence(used: Any) -> Iterator[Words]:
    """Lines on peak, FLOPs and the other utilizations, as far as they are known."""
    if used["peak_flops"] is not None and used["mfu"] is not None:
        peaks = ", ".join(f"{flops(rate, 'FLOP/s')} {dtype}" for dtype, rate in used["peak_flops"].items())
        yield f"peak: {peaks} per rank, {used['peak_source']}"
    if used["model_flops_per_step"] is not None:
        per_step = _number("model_flops_per_step", form="flops")
        yield "model FLOPs: ", per_step, f" per step {used['flops_convention']}"
        yield from _executed(used)
    if used["mfu"] is not None:
        yield from _ratios(used)


def _executed(used: Any) -> Iterator[Words]:
    """Redundant are padding, products that several ranks repeat, and products that a kernel repeats."""
    ran = _number("executed_flops_per_step", form="flops")
    if not used["executed_flops_per_step"] or used["recomputed_flops_per_step"] is None:
        return
    if used["redundant_flops_per_step"] is None:
        yield (
            "executed FLOPs: only ",
            ran,
            " were counted, and HFU uses them; the declared FLOPs are too high, or some kernels are not counted",
        )
        return
    again, redundant = (_number(f"{what}_flops_per_step", per=ran.paths[0]) for what in ("recomputed", "redundant"))
    yield "executed FLOPs: ", ran, " per step, ", again, " recomputed and ", redundant, " redundant"


def _ratios(used: Any) -> Iterator[Words]:
    if used["mfu"] > 1:
        yield "an MFU above 100 % is impossible: the FLOPs or the peak are wrong"
    if used["waterfall"] is not None:
        ideal, again, lost = (
            number("utilization", "waterfall", term, form="share")
            for term in ("ideal", "redundant_compute", "kernel_inefficiency")
        )
        redundant: Words = (again, " redundant compute, ") if used["waterfall"]["redundant_compute"] else ""
        yield (
            "forward and backward, of step time: ",
            ideal,
            " the model at peak, ",
            redundant,
            lost,
            " kernel inefficiency",
        )
    if used["hfu"] is not None:
        yield "HFU ", _number("hfu"), ": all executed FLOPs, recomputed ones included"
    yield _conventions(used)
    if used["mfu_job"] is None:
        yield f"MFU (job) unknown: {used['mfu_job_reason']}"
    else:
        yield "MFU (job) ", _number("mfu_job"), ": over the whole job with start-up, restarts and lost steps"


def _conventions(used: Any) -> Words:
    """The MFU in both published conventions, to compare with the number that a trainer prints."""
    if used["mfu_paper"] is None:
        return "MFU (paper) unknown: the declared FLOPs do not say whether causal attention is whole or halved"
    if used["mfu_paper"] == used["mfu"]:
        return "MFU (paper) ", _number("mfu_paper"), ": the same, because no causal attention was counted"
    whole = ": causal attention whole, as PaLM, nanoGPT and torchtitan print it"
    return "MFU (paper) ", _number("mfu_paper"), whole, "; halved, as Megatron-LM and MaxText do, ", _number("mfu")
