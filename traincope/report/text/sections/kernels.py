"""GPU and KERNELS, from kernel traces: each GPU's time, the kernels that took it, and what bounds them."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from traincope.analysis import Analysis, ClassTime, GpuPartition, Kernels, QueueLength, Unfused
from traincope.analysis.kernels.kernel_classes import VERSION, Family
from traincope.analysis.kernels.kernels import Source
from traincope.analysis.kernels.overlap import Overlap
from traincope.analysis.kernels.roofline import Roofline
from traincope.analysis.kernels.unfused import Chain
from traincope.lines import indented, table, text
from traincope.printable import printable
from traincope.report import schema
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


def gpus(parts: Sequence[GpuPartition]) -> Iterator[RenderableType]:
    """One row per GPU: shares of the time from its first event to the end of its last event."""
    shown = sorted(sorted(parts, key=_computing)[:MAX_GPUS], key=lambda part: (part.rank, part.device))
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
        rows.add_row(f"    {part.rank}", printable(part.device), milliseconds(part.span_ns), *_shares(part))
    yield rows


def _computing(part: GpuPartition) -> float:
    return part.compute_ns / part.span_ns if part.span_ns else 0.0


def _shares(part: GpuPartition) -> Iterator[str]:
    hidden_ns = part.communication_ns - part.exposed_communication_ns
    for ns in (part.compute_ns, part.exposed_communication_ns, part.exposed_memory_ns, part.idle_ns):
        yield share(ns / part.span_ns if part.span_ns else None)
    yield share(hidden_ns / part.span_ns if part.span_ns else None)


def kernels(analysis: Analysis, costs: schema.Kernels) -> Iterator[RenderableType]:
    """One row per class of kernels, then lines on overlap, fused and unclassified kernels.

    `costs`: the document's part, for costs in rank-hours and money.
    """
    traced = analysis.kernels
    if traced is None:
        return
    head = Text("KERNELS" if traced.source is Source.DEVICE else "OPERATORS", style="bold")
    yield head.append(f"  {scope(traced)}", style="not bold dim")
    heads = cost_heads(costs)
    rows = table("class", "count", "ms", "share", "rated", "of peak", *heads)
    for each, cost in zip(traced.classes, costs["classes"], strict=True):
        cells = count(each.count), milliseconds(each.total_ns), *_rating(each, traced), *_costs(cost)[: len(heads)]
        rows.add_row(f"    {each.name}", *cells)
    yield rows
    rooflines = [(each.name, each.roofline) for each in traced.classes if each.roofline is not None]
    if rooflines:
        bounds = table("roofline", "ms", "FLOP/s", "of peak", "GB/s", "of peak", "FLOP/byte", "bound by")
        for kind, roofline in rooflines:
            bounds.add_row(f"    {kind}", *_bounds(roofline))
        yield bounds
    yield indented(text(line, style="dim") for line in notes(analysis, traced, costs))


def _bounds(roofline: Roofline) -> Iterator[str]:
    intensity = roofline.intensity
    yield milliseconds(roofline.took_ns)
    yield flops(roofline.flops_per_second, unit="")
    yield share(roofline.compute_ratio)
    yield gigabytes_per_second(roofline.bytes_per_second)
    yield share(roofline.memory_ratio)
    yield MISSING if intensity is None else f"{intensity:,.1f}"
    yield roofline.bound


def scope(traced: Kernels) -> str:
    """The traced steps and ranks."""
    where = numbers(traced.ranks, "rank")
    what = f"{numbers(traced.steps, 'step') if traced.steps else count(traced.num_traces, 'trace')} of {where}"
    return what if traced.source is Source.DEVICE else f"{what}; time of operators on the host; no kernel was traced"


def _rating(each: ClassTime, traced: Kernels) -> Iterator[str]:
    """Share of the class; share of it whose FLOPs and peak are known (rated); share of peak that this part reaches."""
    yield share(each.total_ns / traced.total_ns if traced.total_ns else 0.0)
    if each.rated is None or not each.rated.took_ns:
        yield from (MISSING, MISSING)
    else:
        yield share(each.rated.took_ns / each.total_ns)
        yield share(each.rated.ideal_ns / each.rated.took_ns)


def cost_heads(costs: schema.Kernels) -> tuple[str, ...]:
    """Heads of the cost columns: only if a price is known or the loss is at least an hour."""
    if any(cost["inefficiency_money"] is not None for cost in costs["classes"]):
        return BELOW_PEAK, costs["currency"] or ""
    return (BELOW_PEAK,) if sum(cost["inefficiency_rank_hours"] or 0 for cost in costs["classes"]) >= 1 else ()


def _costs(cost: schema.KernelClass) -> tuple[str, str]:
    return rank_hours(cost["inefficiency_rank_hours"]), money(cost["inefficiency_money"])


def notes(analysis: Analysis, traced: Kernels, costs: schema.Kernels) -> Iterator[str]:
    """Lines below the tables: unclassified and fused kernels, overlap, queues, chains, and the longest kernels."""
    if traced.unknown_ratio:
        yield f"{share(traced.unknown_ratio)} of the time is unclassified (kernel name table {VERSION})"
    fused = sum(each.fused_ns for each in traced.classes)
    if fused:
        yield f"{duration(fused)} of gemm time is in kernels that also communicate"
    yield from _no_roofline(traced)
    if traced.overlap is not None and traced.overlap.beside_ns:
        yield _overlap(traced.overlap, costs)
    yield from _queue(analysis.queue_lengths)
    if analysis.unfused is not None and analysis.unfused.count:
        yield from _chains(analysis.unfused)
    longest = "; ".join(f"{_short(each.name)} {milliseconds(each.total_ns)}" for each in traced.longest[:MAX_NAMED])
    yield f"longest, ms: {longest}"


def _overlap(overlap: Overlap, costs: schema.Kernels) -> str:
    compared, slower = overlap.compared_ns, overlap.slowdown_ns
    if slower is None or not compared:
        few = "none" if not overlap.num_compared else f"only {overlap.num_compared}"
        beside = duration(overlap.beside_ns)
        return f"kernels ran {beside} during communication; {few} also ran alone often enough to compare"
    longer = share(slower / (compared - slower) if compared > slower else None)
    price = costs["overlap_slowdown_money"]
    hours = rank_hours(costs["overlap_slowdown_rank_hours"])
    cost = "" if price is None else f", {hours} rank-hours, {money(price, costs['currency'])}"
    return (
        f"during communication, kernels ran {duration(slower)} ({longer}{cost}) longer than alone; "
        f"{count(overlap.num_compared, 'kernel')} compared, {share(compared / overlap.beside_ns)} of their time"
    )


def _no_roofline(traced: Kernels) -> Iterator[str]:
    """The reason, if no class has a roofline."""
    computing = [each for each in traced.classes if each.family is Family.COMPUTE]
    if traced.source is Source.DEVICE and computing and all(each.roofline is None for each in traced.classes):
        yield f"roofline unknown: {computing[0].roofline_reason}"


def _queue(lengths: Sequence[QueueLength]) -> Iterator[str]:
    """The queue of the compute streams, and the emptiest of them if there are several."""
    queues = [queue for queue in lengths if queue.computes]
    means = [(queue.mean, queue.span_ns) for queue in queues if queue.mean is not None]
    empty = {queue.rank: queue.empty_ratio for queue in queues if queue.empty_ratio is not None}
    unknown = [queue.reason for queue in queues if queue.reason is not None]
    if means:
        span_ns = sum(ns for _, ns in means)
        waiting = sum(mean * ns for mean, ns in means) / span_ns
        none = sum((queue.empty_ratio or 0.0) * queue.span_ns for queue in queues) / span_ns
        worst = max(empty, key=lambda rank: empty[rank])
        of_worst = f" (most on rank {worst}: {share(empty[worst])})" if len(empty) > 1 else ""
        what = "in steps" if any(queue.steps for queue in queues) else "in the traces"
        yield (
            f"{waiting:,.1f} launched works wait for the compute stream on average {what}, none for {share(none)} "
            f"of the time{of_worst}"
        )
    elif unknown:
        yield f"queue length unknown: {unknown[0]}"


def _chains(unfused: Unfused) -> Iterator[str]:
    """Chains of kernels that could be one kernel, and the longest of them."""
    saving = unfused.saving
    rated = "" if unfused.rated_ns == unfused.total_ns else f" of {share(unfused.rated_ns / unfused.total_ns)}"
    saved = (
        f"; fusion{rated} saves at most {duration(saving.ns)} and {size(saving.num_bytes)} of memory traffic"
        if saving is not None
        else f"; {unfused.chains[0].reason}"
    )
    yield (
        f"{count(unfused.count, 'chain')} of {count(unfused.num_kernels, 'unfused kernel')} take "
        f"{duration(unfused.total_ns)}{saved}"
    )
    for chain in unfused.chains[:MAX_NAMED]:
        yield f"chain in {chain.phase}, {duration(chain.total_ns)}: {chain_name(chain)}"


def chain_name(chain: Chain) -> str:
    """The operators of a chain, and how often it ran."""
    named = [_short(name) for name in chain.operators[:MAX_OPERATORS]]
    more = len(chain.operators) - len(named)
    return f"{', '.join(named)}{f' and {more} more' if more else ''} (x {chain.count:,})"


def _short(name: str) -> str:
    """A kernel's name without template arguments, which are most of the name."""
    bare = bare_name(name)
    return bare if len(bare) <= MAX_NAME_LENGTH else f"{bare[: MAX_NAME_LENGTH - 3]}..."
