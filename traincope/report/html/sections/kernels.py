"""GPU section: the time of each traced GPU, the classes of kernels with their rooflines, queues and chains."""

from collections.abc import Iterator, Sequence

from traincope.analysis import ClassTime, GpuPartition, Kernels, QueueLength
from traincope.analysis.kernels.kernels import Source as Traced
from traincope.analysis.kernels.roofline import Roofline
from traincope.analysis.kernels.unfused import Chain
from traincope.figures.efficiency.gpus import gpu_shares
from traincope.figures.efficiency.kernels import kernel_classes
from traincope.report.html.markup import Html, joined
from traincope.report.html.plots import plot
from traincope.report.html.section import Section, notes, table
from traincope.report.html.source import Source
from traincope.report.text.sections.kernels import chain_name, cost_heads, scope
from traincope.report.text.sections.kernels import notes as kernel_notes

TITLE = "GPUs and kernels"
GPU_HEADS = ("rank", "gpu", "span", "compute", "exposed communication", "exposed memory", "idle")
ROOFLINE_HEADS = ("class", "ms", "FLOP/s", "of peak", "GB/s", "of peak", "FLOP/byte", "bound by")
QUEUE_HEADS = ("rank", "stream", "works", "waiting on average", "none waits")
CHAIN_HEADS = ("phase", "operators", "chains", "kernels", "ms", "saves ms", "traffic")
CLASS_HEADS = ("class", "count", "ms", "share", "rated", "of peak")
MISSING = "No kernel traces. Record steps at level 3, or import traces with `traincope import`."
MAX_ROWS = 64


def kernels(source: Source) -> Section:
    parts, traced = source.analysis.gpu_partition, source.analysis.kernels
    if not parts and traced is None:
        return Section(name="kernels", title=TITLE, missing=MISSING)
    return Section(
        name="kernels",
        title=TITLE,
        lead="" if traced is None else scope(traced),
        body=(*_gpus(source, parts), *([] if traced is None else _classes(source, traced))),
    )


def _gpus(source: Source, parts: Sequence[GpuPartition]) -> Iterator[Html]:
    if parts:
        caption = "Each GPU from its first event to its last"
        yield plot(gpu_shares(parts), name="gpus", caption=caption)
        yield table(
            caption, GPU_HEADS, [_gpu(source, at, part) for at, part in enumerate(parts[:MAX_ROWS])], words=(1,)
        )


def _gpu(source: Source, at: int, part: GpuPartition) -> list[Html]:
    prefix = ("gpu_partition", at)
    shown = ("compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns")
    return [
        joined(str(part.rank)),
        joined(part.device),
        source.number(*prefix, "span_ns", form="duration"),
        *(source.number(*prefix, key, form="share", per=(*prefix, "span_ns")) for key in shown),
    ]


def _classes(source: Source, traced: Kernels) -> Iterator[Html]:
    costs = source.document["kernels"]
    if costs is None:
        return
    if traced.classes:
        heading = "Kernels" if traced.source is Traced.DEVICE else "Operators"
        yield plot(kernel_classes(traced), name="classes", caption=f"{heading} by class")
        heads = cost_heads(costs)
        rows = [
            [*_class(source, at, each), *_costs(source, at)[: len(heads)]] for at, each in enumerate(traced.classes)
        ]
        yield table(f"{heading} by class", (*CLASS_HEADS, *heads), rows)
    rated = [(at, each, each.roofline) for at, each in enumerate(traced.classes) if each.roofline is not None]
    if rated:
        yield table("Roofline by class", ROOFLINE_HEADS, [_roofline(source, *each) for each in rated], words=(0, 7))
    yield notes(kernel_notes(source.analysis, traced, costs))
    queues, unfused = source.analysis.queue_lengths, source.analysis.unfused
    if queues:
        rows = [_queue(source, at, queue) for at, queue in enumerate(queues[:MAX_ROWS])]
        yield table("Launched works that wait, by stream", QUEUE_HEADS, rows, words=(0, 1))
    if unfused is not None and unfused.chains:
        rows = [_chain(source, at, chain) for at, chain in enumerate(unfused.chains)]
        yield table("Chains of unfused kernels, and what fusion saves at most", CHAIN_HEADS, rows, words=(0, 1))


def _roofline(source: Source, at: int, each: ClassTime, roofline: Roofline) -> list[Html]:
    prefix = ("kernels", "classes", at, "roofline")
    return [
        joined(each.name),
        source.number(*prefix, "took_ns", form="milliseconds"),
        source.number(*prefix, "flops_per_second", form="flops"),
        source.number(*prefix, "compute_ratio", form="share"),
        source.number(*prefix, "bytes_per_second", form="gigabytes"),
        source.number(*prefix, "memory_ratio", form="share"),
        source.number(*prefix, "flops_per_byte", form="mean"),
        joined(roofline.bound),
    ]


def _queue(source: Source, at: int, queue: QueueLength) -> list[Html]:
    prefix = ("kernels", "queues", at)
    return [
        joined(str(queue.rank)),
        joined(f"{queue.stream} (compute)" if queue.computes else queue.stream),
        source.number(*prefix, "works", form="count"),
        source.number(*prefix, "mean", form="mean"),
        source.number(*prefix, "empty_ratio", form="share"),
    ]


def _chain(source: Source, at: int, chain: Chain) -> list[Html]:
    prefix = ("kernels", "unfused", "chains", at)
    return [
        joined(chain.phase),
        joined(chain_name(chain)),
        source.number(*prefix, "count", form="count"),
        source.number(*prefix, "kernels", form="count"),
        source.number(*prefix, "total_ns", form="milliseconds"),
        source.number(*prefix, "saved_ns", form="milliseconds"),
        source.number(*prefix, "saved_bytes", form="size"),
    ]


def _class(source: Source, at: int, each: ClassTime) -> list[Html]:
    prefix = ("kernels", "classes", at)
    return [
        joined(each.name),
        source.number(*prefix, "count", form="count"),
        source.number(*prefix, "total_ns", form="milliseconds"),
        source.number(*prefix, "share_ratio", form="share"),
        source.number(*prefix, "rated_ns", form="share", per=(*prefix, "total_ns")),
        source.number(*prefix, "ideal_ns", form="share", per=(*prefix, "rated_ns")),
    ]


def _costs(source: Source, at: int) -> tuple[Html, Html]:
    prefix = ("kernels", "classes", at)
    return (
        source.number(*prefix, "inefficiency_rank_hours", form="hours"),
        source.number(*prefix, "inefficiency_money", form="money"),
    )
