"""GPUs and kernels, from kernel traces: each GPU's time, the kernels that took it, what bounds them, queues, chains."""

from collections.abc import Iterator, Sequence

from traincope.analysis import Analysis, ClassTime, GpuPartition, Kernels, QueueLength, Unfused
from traincope.analysis.kernels.kernel_classes import VERSION, Family
from traincope.analysis.kernels.kernels import Source as Traced
from traincope.analysis.kernels.overlap import Overlap
from traincope.analysis.kernels.roofline import Roofline
from traincope.analysis.kernels.unfused import Chain
from traincope.report import schema
from traincope.report.sections.forms import Form
from traincope.report.sections.section import Drawing, Lines, On, Part, Section, Table, Words, number, rows
from traincope.report.sections.source import Source
from traincope.timeline.device.communication_kernels import bare_name
from traincope.units import count, duration, milliseconds, money, numbers, rank_hours, share, size

NAME = "kernels"
TITLES = {Traced.DEVICE: "GPUs and kernels", Traced.HOST: "Operators"}
MISSING = "No kernel traces. Record steps at level 3, or import traces with `traincope import`."
MAX_ROWS = {On.CONSOLE: 16, On.SCREEN: 64}
"""If there are more GPUs, those with the smallest compute share are shown; JSON has all."""
MAX_NAMED = 3
MAX_OPERATORS = 6
BELOW_PEAK = "rank-hours below peak"
MAX_NAME_LENGTH = 60
GPU_PARTS = ("compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns")
FORMS_OF_CLASS: tuple[tuple[str, Form], ...] = (
    ("count", "count"),
    ("total_ns", "milliseconds"),
    ("share_ratio", "share"),
)
FORMS_OF_ROOFLINE: tuple[tuple[str, Form], ...] = (
    ("took_ns", "milliseconds"),
    ("flops_per_second", "flops"),
    ("compute_ratio", "share"),
    ("bytes_per_second", "gigabytes"),
    ("memory_ratio", "share"),
    ("flops_per_byte", "mean"),
)
FORMS_OF_CHAIN: tuple[tuple[str, Form], ...] = (
    ("count", "count"),
    ("kernels", "count"),
    ("total_ns", "milliseconds"),
    ("saved_ns", "milliseconds"),
    ("saved_bytes", "size"),
)
FORMS_OF_QUEUE: tuple[tuple[str, Form], ...] = (("works", "count"), ("mean", "mean"), ("empty_ratio", "share"))


def kernels(source: Source) -> Section:
    parts, traced, costs = source.analysis.gpu_partition, source.analysis.kernels, source.document["kernels"]
    if not parts and (traced is None or costs is None):
        return Section(name=NAME, title=TITLES[Traced.DEVICE], missing=MISSING)
    return Section(
        name=NAME,
        title=TITLES[Traced.DEVICE if parts or traced is None else traced.source],
        lead="" if traced is None else _scope(traced),
        parts=(
            *_gpus(parts),
            *([] if traced is None or costs is None else _classes(source.analysis, traced, costs)),
            *_queues(source.analysis.queue_lengths),
            *_chains(source.analysis.unfused),
        ),
    )


def _scope(traced: Kernels) -> str:
    """The traced steps and ranks."""
    where = numbers(traced.ranks, "rank")
    what = f"{numbers(traced.steps, 'step') if traced.steps else count(traced.num_traces, 'trace')} of {where}"
    return what if traced.source is Traced.DEVICE else f"{what}; time of operators on the host; no kernel was traced"


def _gpus(parts: Sequence[GpuPartition]) -> Iterator[Part]:
    if not parts:
        return
    caption = "Each GPU from its first event to its last; comm and memory: without compute"
    yield Drawing(figure="gpus", of=(parts,), caption=caption)
    yield Lines((f"{caption[0].lower()}{caption[1:]}",), on=On.CONSOLE)
    for on, most in MAX_ROWS.items():
        chosen = sorted(sorted(range(len(parts)), key=lambda at: _computing(parts[at]))[:most])
        if len(chosen) < len(parts):
            yield Lines((f"{len(chosen)} of {len(parts)} GPUs, those with the smallest compute share",), on=on)
        yield Table(
            caption=caption,
            heads=("rank", "gpu", "ms", "compute", "comm", "memory", "idle", "comm hidden"),
            rows=rows(_gpu(at, parts[at]) for at in chosen),
            on=on,
        )


def _gpu(at: int, part: GpuPartition) -> Iterator[Words]:
    span = ("gpu_partition", at, "span_ns")
    hidden_ns = part.communication_ns - part.exposed_communication_ns
    yield from (str(part.rank), part.device, number(*span, form="milliseconds"))
    for key in GPU_PARTS:
        yield number("gpu_partition", at, key, form="share", per=span)
    yield share(hidden_ns / part.span_ns if part.span_ns else None)


def _computing(part: GpuPartition) -> float:
    return part.compute_ns / part.span_ns if part.span_ns else 0.0


def _classes(analysis: Analysis, traced: Kernels, costs: schema.Kernels) -> Iterator[Part]:
    """The classes of kernels with their costs, their rooflines, and what else is known of them."""
    what, heads = "Kernels" if traced.source is Traced.DEVICE else "Operators", _cost_heads(costs)
    if traced.classes:
        yield Drawing(figure="classes", of=(traced,), caption=f"{what} by class")
        yield Table(
            caption=f"{what} by class",
            heads=("class", "count", "ms", "share", "rated", "of peak", *heads),
            rows=rows(_class(at, each, num_costs=len(heads)) for at, each in enumerate(traced.classes)),
        )
    yield Table(
        caption="Roofline by class",
        heads=("roofline", "ms", "FLOP/s", "of peak", "GB/s", "of peak", "FLOP/byte", "bound by"),
        rows=rows(
            _roofline(at, each.name, each.roofline)
            for at, each in enumerate(traced.classes)
            if each.roofline is not None
        ),
        left=frozenset({0, 7}),
    )
    yield Lines(tuple(_notes(analysis, traced, costs)))


def _class(at: int, each: ClassTime, *, num_costs: int) -> Iterator[Words]:
    """Rated is the share of the class whose FLOPs and peak are known; of peak, what this part reaches."""
    path = ("kernels", "classes", at)
    costs = (
        number(*path, "inefficiency_rank_hours", form="hours"),
        number(*path, "inefficiency_money", form="money"),
    )
    yield each.name
    yield from (number(*path, key, form=form) for key, form in FORMS_OF_CLASS)
    yield number(*path, "rated_ns", form="share", per=(*path, "total_ns"))
    yield number(*path, "ideal_ns", form="share", per=(*path, "rated_ns"))
    yield from costs[:num_costs]


def _cost_heads(costs: schema.Kernels) -> tuple[str, ...]:
    """Heads of the cost columns: only if a price is known or the loss is at least an hour."""
    if any(cost["inefficiency_money"] is not None for cost in costs["classes"]):
        return BELOW_PEAK, costs["currency"] or ""
    return (BELOW_PEAK,) if sum(cost["inefficiency_rank_hours"] or 0 for cost in costs["classes"]) >= 1 else ()


def _roofline(at: int, name: str, roofline: Roofline) -> Iterator[Words]:
    yield name
    yield from (number("kernels", "classes", at, "roofline", key, form=form) for key, form in FORMS_OF_ROOFLINE)
    yield roofline.bound


def _queues(lengths: Sequence[QueueLength]) -> Iterator[Part]:
    yield Table(
        caption="Launched works that wait, by stream",
        heads=("rank", "stream", "works", "waiting on average", "none waits"),
        rows=rows(
            (
                str(queue.rank),
                f"{queue.stream} (compute)" if queue.computes else queue.stream,
                *(number("kernels", "queues", at, key, form=form) for key, form in FORMS_OF_QUEUE),
            )
            for at, queue in enumerate(lengths[: MAX_ROWS[On.SCREEN]])
        ),
        left=frozenset({0, 1}),
        on=On.SCREEN,
    )


def _chains(unfused: Unfused | None) -> Iterator[Part]:
    chains = () if unfused is None else unfused.chains
    yield Table(
        caption="Chains of unfused kernels, and what fusion saves at most",
        heads=("phase", "operators", "chains", "kernels", "ms", "saves ms", "traffic"),
        rows=rows(
            (
                chain.phase,
                _operators(chain),
                *(number("kernels", "unfused", "chains", at, key, form=form) for key, form in FORMS_OF_CHAIN),
            )
            for at, chain in enumerate(chains)
        ),
        left=frozenset({0, 1}),
        on=On.SCREEN,
    )


def _notes(analysis: Analysis, traced: Kernels, costs: schema.Kernels) -> Iterator[str]:
    """Lines below the tables: unclassified and fused kernels, overlap, queues, chains, and the longest kernels."""
    if traced.unknown_ratio:
        yield f"{share(traced.unknown_ratio)} of the time is unclassified (kernel name table {VERSION})"
    fused = sum(each.fused_ns for each in traced.classes)
    if fused:
        yield f"{duration(fused)} of gemm time is in kernels that also communicate"
    yield from _no_roofline(traced)
    if traced.overlap is not None and traced.overlap.beside_ns:
        yield _overlap(traced.overlap, costs)
    yield from _waiting(analysis.queue_lengths)
    if analysis.unfused is not None and analysis.unfused.count:
        yield from _unfused(analysis.unfused)
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
    if traced.source is Traced.DEVICE and computing and all(each.roofline is None for each in traced.classes):
        yield f"roofline unknown: {computing[0].roofline_reason}"


def _waiting(lengths: Sequence[QueueLength]) -> Iterator[str]:
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


def _unfused(unfused: Unfused) -> Iterator[str]:
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
        yield f"chain in {chain.phase}, {duration(chain.total_ns)}: {_operators(chain)}"


def _operators(chain: Chain) -> str:
    """The operators of a chain, and how often it ran."""
    named = [_short(name) for name in chain.operators[:MAX_OPERATORS]]
    more = len(chain.operators) - len(named)
    return f"{', '.join(named)}{f' and {more} more' if more else ''} (x {chain.count:,})"


def _short(name: str) -> str:
    """A kernel's name without template arguments, which are most of the name."""
    bare = bare_name(name)
    return bare if len(bare) <= MAX_NAME_LENGTH else f"{bare[: MAX_NAME_LENGTH - 3]}..."
