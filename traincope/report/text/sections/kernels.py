"""GPU and KERNELS, from kernel traces: each GPU's time, the kernels that took it, and what bounds them."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from traincope.analysis.kernels.kernel_classes import Family
from traincope.analysis.kernels.kernels import Source
from traincope.lines import indented, table, text
from traincope.printable import printable
from traincope.report.schema import Chain, GpuPartition, KernelClass, Kernels, Roofline
from traincope.timeline.device.communication_kernels import bare_name
from traincope.units import (
    MISSING,
    count,
    duration,
    flops,
    gigabytes_per_second,
    milliseconds,
    money,
    numbers,
    rank_hours,
    share,
    size,
)

MAX_GPUS = 16
"""If there are more GPUs, those with the smallest compute share are shown; JSON has all."""
MAX_NAMED = 3
MAX_OPERATORS = 6
BELOW_PEAK = "rank-hours below peak"
MAX_NAME_LENGTH = 60


def gpus(parts: list[GpuPartition]) -> Iterator[RenderableType]:
    """One row per GPU: shares of the time from its first event to the end of its last event."""
    shown = sorted(sorted(parts, key=_computing)[:MAX_GPUS], key=lambda part: (part["rank"], part["device"]))
    scope = (
        ""
        if len(shown) == len(parts)
        else f"; {len(shown)} of {len(parts)} GPUs, those with the smallest compute share"
    )
    head = Text("GPU", style="bold")
    what = f"shares from first to last event; comm and memory without compute{scope}"
    yield head.append(f"  {what}", style="not bold dim")
    rows = table("rank", "gpu", "ms", "compute", "comm", "memory", "idle", "comm hidden")
    for part in shown:
        rows.add_row(f"    {part['rank']}", printable(part["device"]), milliseconds(part["span_ns"]), *_shares(part))
    yield rows


def _computing(part: GpuPartition) -> float:
    return part["compute_ns"] / part["span_ns"] if part["span_ns"] else 0.0


def _shares(part: GpuPartition) -> Iterator[str]:
    hidden_ns = part["communication_ns"] - part["exposed_communication_ns"]
    for ns in (part["compute_ns"], part["exposed_communication_ns"], part["exposed_memory_ns"], part["idle_ns"]):
        yield share(ns / part["span_ns"] if part["span_ns"] else None)
    yield share(hidden_ns / part["span_ns"] if part["span_ns"] else None)


def kernels(traced: Kernels) -> Iterator[RenderableType]:
    """One row per class of kernels, then lines on overlap, fused and unclassified kernels."""
    head = Text("KERNELS" if traced["source"] == Source.DEVICE else "OPERATORS", style="bold")
    yield head.append(f"  {scope(traced)}", style="not bold dim")
    heads = cost_heads(traced)
    rows = table("class", "count", "ms", "share", "rated", "of peak", *heads)
    for kernel_class in traced["classes"]:
        cells = (
            count(kernel_class["count"]),
            milliseconds(kernel_class["total_ns"]),
            *_rating(kernel_class),
            *_costs(kernel_class)[: len(heads)],
        )
        rows.add_row(f"    {kernel_class['kind']}", *cells)
    yield rows
    rooflines = [(each["kind"], each["roofline"]) for each in traced["classes"] if each["roofline"] is not None]
    if rooflines:
        bounds = table("roofline", "ms", "FLOP/s", "of peak", "GB/s", "of peak", "FLOP/byte", "bound by")
        for kind, roofline in rooflines:
            bounds.add_row(f"    {kind}", *_bounds(roofline))
        yield bounds
    yield indented(text(line, style="dim") for line in notes(traced))


def _bounds(roofline: Roofline) -> Iterator[str]:
    intensity = roofline["flops_per_byte"]
    yield milliseconds(roofline["took_ns"])
    yield flops(roofline["flops_per_second"], unit="")
    yield share(roofline["compute_ratio"])
    yield gigabytes_per_second(roofline["bytes_per_second"])
    yield share(roofline["memory_ratio"])
    yield MISSING if intensity is None else f"{intensity:,.1f}"
    yield roofline["bound"]


def scope(traced: Kernels) -> str:
    """The traced steps and ranks."""
    where = numbers(traced["ranks"], "rank")
    what = (
        f"{numbers(traced['steps'], 'step')} of {where}"
        if traced["steps"]
        else f"{count(traced['traces'], 'trace')} of {where}"
    )
    return what if traced["source"] == Source.DEVICE else f"{what}; time of operators on the host; no kernel was traced"


def _rating(kernel_class: KernelClass) -> Iterator[str]:
    """Share of the class; share of it whose FLOPs and peak are known (rated); share of peak that this part reaches."""
    yield share(kernel_class["share_ratio"])
    rated, ideal = kernel_class["rated_ns"], kernel_class["ideal_ns"]
    if not rated or ideal is None:
        yield from (MISSING, MISSING)
    else:
        yield share(rated / kernel_class["total_ns"])
        yield share(ideal / rated)


def cost_heads(traced: Kernels) -> tuple[str, ...]:
    """Heads of the cost columns: only if a price is known or the loss is at least an hour."""
    if any(kernel_class["inefficiency_money"] is not None for kernel_class in traced["classes"]):
        return BELOW_PEAK, traced["currency"] or ""
    return (
        (BELOW_PEAK,)
        if sum(kernel_class["inefficiency_rank_hours"] or 0 for kernel_class in traced["classes"]) >= 1
        else ()
    )


def _costs(kernel_class: KernelClass) -> tuple[str, str]:
    return rank_hours(kernel_class["inefficiency_rank_hours"]), money(kernel_class["inefficiency_money"])


def notes(traced: Kernels) -> Iterator[str]:
    """Lines below the tables: unclassified and fused kernels, overlap, queues, chains, and the longest kernels."""
    if traced["unknown_ratio"]:
        names = f"kernel name table {traced['table_version']}"
        yield f"{share(traced['unknown_ratio'])} of the time is unclassified ({names})"
    fused = sum(kernel_class["fused_ns"] for kernel_class in traced["classes"])
    if fused:
        yield f"{duration(fused)} of gemm time is in kernels that also communicate"
    yield from _no_roofline(traced)
    yield from _overlap(traced)
    yield from _queue(traced)
    yield from _chains(traced)
    longest = "; ".join(
        f"{_short(kernel_class['name'])} {milliseconds(kernel_class['total_ns'])}"
        for kernel_class in traced["longest"][:MAX_NAMED]
    )
    yield f"longest, ms: {longest}"


def _overlap(traced: Kernels) -> Iterator[str]:
    overlapped, compared, slower = (
        traced[key] for key in ("beside_communication_ns", "compared_ns", "overlap_slowdown_ns")
    )
    if not overlapped:
        return
    num_compared = traced["compared"] or 0
    if slower is None or not compared:
        few = "none" if not num_compared else f"only {num_compared}"
        yield f"kernels ran {duration(overlapped)} during communication; {few} also ran alone often enough to compare"
        return
    longer = share(slower / (compared - slower) if compared > slower else None)
    price = traced["overlap_slowdown_money"]
    hours = rank_hours(traced["overlap_slowdown_rank_hours"])
    cost = "" if price is None else f", {hours} rank-hours, {money(price, traced['currency'])}"
    yield (
        f"during communication, kernels ran {duration(slower)} ({longer}{cost}) longer than alone; "
        f"{count(num_compared, 'kernel')} compared, {share(compared / overlapped)} of their time"
    )


def _no_roofline(traced: Kernels) -> Iterator[str]:
    """The reason, if no class has a roofline."""
    computing = [each for each in traced["classes"] if each["family"] == Family.COMPUTE]
    if traced["source"] == Source.DEVICE and computing and all(each["roofline"] is None for each in traced["classes"]):
        yield f"roofline unknown: {computing[0]['roofline_reason']}"


def _queue(traced: Kernels) -> Iterator[str]:
    """The queue of the compute streams, and the emptiest of them if there are several."""
    queues = [queue for queue in traced["queues"] if queue["computes"]]
    means = [(queue["mean"], queue["span_ns"]) for queue in queues if queue["mean"] is not None]
    empty = {queue["rank"]: queue["empty_ratio"] for queue in queues if queue["empty_ratio"] is not None}
    unknown = [queue["reason"] for queue in queues if queue["reason"] is not None]
    if means:
        span_ns = sum(ns for _, ns in means)
        waiting = sum(mean * ns for mean, ns in means) / span_ns
        none = sum((queue["empty_ratio"] or 0.0) * queue["span_ns"] for queue in queues) / span_ns
        worst = max(empty, key=lambda rank: empty[rank])
        of_worst = f" (most on rank {worst}: {share(empty[worst])})" if len(empty) > 1 else ""
        what = "in steps" if any(queue["steps"] for queue in queues) else "in the traces"
        yield (
            f"{waiting:,.1f} launched works wait for the compute stream on average {what}, none for {share(none)} "
            f"of the time{of_worst}"
        )
    elif unknown:
        yield f"queue length unknown: {unknown[0]}"


def _chains(traced: Kernels) -> Iterator[str]:
    """Chains of kernels that could be one kernel, and the longest of them."""
    unfused = traced["unfused"]
    if unfused is None or not unfused["count"]:
        return
    saved_ns, saved_bytes = unfused["saved_ns"], unfused["saved_bytes"]
    rated = (
        "" if unfused["rated_ns"] == unfused["total_ns"] else f" of {share(unfused['rated_ns'] / unfused['total_ns'])}"
    )
    saving = (
        f"; fusion{rated} saves at most {duration(saved_ns)} and {size(saved_bytes)} of memory traffic"
        if saved_ns is not None
        else f"; {unfused['chains'][0]['reason']}"
    )
    yield (
        f"{count(unfused['count'], 'chain')} of {count(unfused['kernels'], 'unfused kernel')} take "
        f"{duration(unfused['total_ns'])}{saving}"
    )
    for chain in unfused["chains"][:MAX_NAMED]:
        yield f"chain in {chain['phase']}, {duration(chain['total_ns'])}: {chain_name(chain)}"


def chain_name(chain: Chain) -> str:
    """The operators of a chain, and how often it ran."""
    named = [_short(name) for name in chain["operators"][:MAX_OPERATORS]]
    more = len(chain["operators"]) - len(named)
    return f"{', '.join(named)}{f' and {more} more' if more else ''} (x {chain['count']:,})"


def _short(name: str) -> str:
    """A kernel's name without template arguments, which are most of the name."""
    bare = bare_name(name)
    return bare if len(bare) <= MAX_NAME_LENGTH else f"{bare[: MAX_NAME_LENGTH - 3]}..."
