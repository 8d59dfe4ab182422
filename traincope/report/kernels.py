"""The sections on kernel traces: what a GPU's time was, and which kernels took it."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from traincope.analysis.kernels import Source
from traincope.plain import plain
from traincope.report.plain import text
from traincope.report.schema import GpuPartition, KernelClass, Kernels
from traincope.report.tables import indented, table
from traincope.units import MISSING, count, duration, milliseconds, money, numbers, rank_hours, share

MOST_GPUS = 16
"""More are cut to those that computed least; JSON has them all."""
NAMED = 3
BELOW_PEAK, PRICE = "rank-hours below it", "price"
LONGEST_NAME = 60


def gpus(parts: list[GpuPartition]) -> Iterator[RenderableType]:
    """One row a GPU: shares of the time from its first event to its last one's end."""
    shown = sorted(sorted(parts, key=_computing)[:MOST_GPUS], key=lambda part: (part["rank"], part["device"]))
    scope = "" if len(shown) == len(parts) else f"; {len(shown)} of {len(parts)}, those that computed least"
    head = Text("GPU", style="bold")
    what = f"from its first event to its last; comm and memory without compute{scope}"
    yield head.append(f"  {what}", style="not bold dim")
    rows = table("rank", "gpu", "ms", "compute", "comm", "memory", "idle", "comm hidden")
    for part in shown:
        rows.add_row(f"    {part['rank']}", plain(part["device"]), milliseconds(part["span_ns"]), *_shares(part))
    yield rows


def _computing(part: GpuPartition) -> float:
    return part["compute_ns"] / part["span_ns"] if part["span_ns"] else 0.0


def _shares(part: GpuPartition) -> Iterator[str]:
    hidden_ns = part["communication_ns"] - part["exposed_communication_ns"]
    for ns in (part["compute_ns"], part["exposed_communication_ns"], part["exposed_memory_ns"], part["idle_ns"]):
        yield share(ns / part["span_ns"] if part["span_ns"] else None)
    yield share(hidden_ns / part["span_ns"] if part["span_ns"] else None)


def kernels(found: Kernels) -> Iterator[RenderableType]:
    """One row a class; what is known of peak and of overlap below."""
    head = Text("KERNELS" if found["source"] == Source.DEVICE else "OPERATORS", style="bold")
    yield head.append(f"  {scope(found)}", style="not bold dim")
    heads = cost_heads(found)
    rows = table("class", "count", "ms", "share", "rated", "of peak", *heads)
    for one in found["classes"]:
        told = (count(one["count"]), milliseconds(one["total_ns"]), *_rating(one), *_costs(one)[: len(heads)])
        rows.add_row(f"    {one['kind']}", *told)
    yield rows
    yield indented(text(line, style="dim") for line in notes(found))


def scope(found: Kernels) -> str:
    """What was traced."""
    where = numbers(found["ranks"], "rank")
    what = (
        f"{numbers(found['steps'], 'step')} of {where}"
        if found["steps"]
        else f"{count(found['traces'], 'trace')} of {where}"
    )
    return what if found["source"] == Source.DEVICE else f"{what}; their own time on the host, no kernel was traced"


def _rating(one: KernelClass) -> Iterator[str]:
    """Which part of its time is held to peak, and what share of peak that part reached."""
    yield share(one["share_ratio"])
    rated, ideal = one["rated_ns"], one["ideal_ns"]
    if not rated or ideal is None:
        yield from (MISSING, MISSING)
    else:
        yield share(rated / one["total_ns"])
        yield share(ideal / rated)


def cost_heads(found: Kernels) -> tuple[str, ...]:
    """Of what lies below peak, where that is worth a column: a price is known, or it is an hour."""
    if any(one["inefficiency_money"] is not None for one in found["classes"]):
        return BELOW_PEAK, PRICE
    return (BELOW_PEAK,) if sum(one["inefficiency_rank_hours"] or 0 for one in found["classes"]) >= 1 else ()


def _costs(one: KernelClass) -> tuple[str, str]:
    return rank_hours(one["inefficiency_rank_hours"]), money(one["inefficiency_money"])


def notes(found: Kernels) -> Iterator[str]:
    """What a table of classes does not tell."""
    if found["unknown_ratio"]:
        table_of = f"table {found['table_version']} of names"
        yield f"{share(found['unknown_ratio'])} of the time is in no class of {table_of}"
    fused = sum(one["fused_ns"] for one in found["classes"])
    if fused:
        yield f"{duration(fused)} of gemm communicates in the same kernel"
    yield from _overlap(found)
    longest = "; ".join(f"{_short(one['name'])} {milliseconds(one['total_ns'])}" for one in found["longest"][:NAMED])
    yield f"longest, ms: {longest}"


def _overlap(found: Kernels) -> Iterator[str]:
    beside, compared, slower = (found[key] for key in ("beside_communication_ns", "compared_ns", "overlap_slowdown_ns"))
    if not beside:
        return
    if slower is None or not compared:
        yield f"kernels ran {duration(beside)} beside communication; none of them also ran alone, to compare"
        return
    longer = share(slower / (compared - slower) if compared > slower else None)
    price = found["overlap_slowdown_money"]
    cost = "" if price is None else f", {rank_hours(found['overlap_slowdown_rank_hours'])} rank-hours, {money(price)}"
    yield (
        f"beside communication kernels ran {duration(slower)} ({longer}{cost}) longer than the same ones alone; "
        f"of their time {share(compared / beside)} is compared"
    )


def _short(name: str) -> str:
    """Without templates' arguments, which are most of a kernel's name."""
    bare = name.removeprefix("void ").partition("<")[0].partition("(")[0] or name
    return bare if len(bare) <= LONGEST_NAME else f"{bare[: LONGEST_NAME - 3]}..."
