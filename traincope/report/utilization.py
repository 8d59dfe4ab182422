"""The section on utilization: how much of the hardware's peak the model's mathematics used."""

from collections.abc import Iterator, Mapping

from rich.padding import Padding
from rich.text import Text

from traincope.report.plain import text
from traincope.report.schema import Utilization
from traincope.units import flops, share


def utilization(found: Utilization) -> Iterator[Text | Padding]:
    """One line, and below it what an MFU is a share of, where there is one."""
    speed = found["tokens_per_second"]
    head = Text("UTILIZATION", style="bold")
    parts = [] if speed is None else [f"{speed:,.0f} tokens/s"]
    if found["mfu"] is None:
        parts.append(f"MFU unknown: {found['reason']}")
    else:
        parts.append(f"MFU {share(found['mfu'])}, HFU {share(found['hfu'])}")
    yield head.append_text(text("  " + "; ".join(parts), style="not bold"))
    if found["mfu"] is not None:
        yield from (Padding(text(line), (0, 0, 0, 4)) for line in evidence(found))


def evidence(found: Utilization) -> Iterator[str]:
    """What the MFU is a share of, and what else was counted; there is an MFU."""
    peaks = ", ".join(f"{flops(peak, 'FLOP/s')} {dtype}" for dtype, peak in (found["peak_flops"] or {}).items())
    yield f"of {peaks} a rank, {found['peak_source']}"
    yield f"{flops(found['model_flops_per_step'])} a step {found['flops_convention']}"
    if found["mfu"] is not None and found["mfu"] > 1:
        yield "which is more than the peak allows: the FLOPs of a step, or the peak, are not what they were told to be"
    yield from _ran(found)
    if found["waterfall"] is not None:
        yield _kernels(found["waterfall"])
    unhalved = "" if found["mfu_paper"] is None else f"not halved: {share(found['mfu_paper'])}; "
    job = share(found["mfu_job"]) if found["mfu_job"] is not None else f"unknown, {found['mfu_job_reason']}"
    yield f"{unhalved}over the whole run: {job}"


def _ran(found: Utilization) -> Iterator[str]:
    """What ran beyond the model; redundant is padding, what several ranks repeat, and what a kernel computes again."""
    ran, again = found["executed_flops_per_step"], found["recomputed_flops_per_step"]
    redundant = found["redundant_flops_per_step"]
    if ran and again is not None and redundant is None:
        yield (
            f"only {flops(ran)} of it was counted, and makes the HFU: what was told is too much, or kernels ran that "
            "are not counted"
        )
    elif ran and again is not None and redundant is not None:
        yield f"{flops(ran)} ran, {share(again / ran)} of it recomputed and {share(redundant / ran)} redundant"


def _kernels(waterfall: Mapping[str, float | None]) -> str:
    """Why forward and backward take longer than the model's mathematics must."""
    again = waterfall["redundant"]
    redundant = f"{share(again)} is redundant, " if again else ""
    lost = share(waterfall["kernel_inefficiency"])
    return f"of forward and backward {share(waterfall['ideal'])} is the model at peak, {redundant}{lost} below peak"
