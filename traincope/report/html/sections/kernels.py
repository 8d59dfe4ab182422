"""GPU section: the time of each traced GPU, the classes of kernels with their rooflines, queues and chains."""

from collections.abc import Iterator

from traincope.analysis.kernels.kernels import Source as Traced
from traincope.figures.efficiency.gpus import gpu_shares
from traincope.figures.efficiency.kernels import kernel_classes
from traincope.report.html.markup import Html, joined
from traincope.report.html.plots import plot
from traincope.report.html.section import Section, notes, table
from traincope.report.html.source import Source
from traincope.report.schema import Chain, GpuPartition, KernelClass, Kernels, QueueLength
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
    parts, data = source.document["gpu_partition"], source.document["kernels"]
    if not parts and data is None:
        return Section(name="kernels", title=TITLE, missing=MISSING)
    return Section(
        name="kernels",
        title=TITLE,
        lead="" if data is None else scope(data),
        body=(*_gpus(source, parts or []), *([] if data is None else _classes(source, data))),
    )


def _gpus(source: Source, parts: list[GpuPartition]) -> Iterator[Html]:
    if parts:
        caption = "Each GPU from its first event to its last"
        yield plot(gpu_shares(source.analysis.gpu_partition), name="gpus", caption=caption)
        yield table(
            caption, GPU_HEADS, [_gpu(source, at, part) for at, part in enumerate(parts[:MAX_ROWS])], words=(1,)
        )


def _gpu(source: Source, at: int, part: GpuPartition) -> list[Html]:
    prefix = ("gpu_partition", at)
    shown = ("compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns")
    return [
        joined(str(part["rank"])),
        joined(part["device"]),
        source.number(*prefix, "span_ns", form="duration"),
        *(source.number(*prefix, key, form="share", per=(*prefix, "span_ns")) for key in shown),
    ]


def _classes(source: Source, data: Kernels) -> Iterator[Html]:
    if source.analysis.kernels is not None and data["classes"]:
        heading = "Kernels" if data["source"] == Traced.DEVICE else "Operators"
        yield plot(kernel_classes(source.analysis.kernels), name="classes", caption=f"{heading} by class")
        heads = cost_heads(data)
        rows = [
            [*_class(source, at, kernel_class), *_costs(source, at)[: len(heads)]]
            for at, kernel_class in enumerate(data["classes"])
        ]
        yield table(f"{heading} by class", (*CLASS_HEADS, *heads), rows)
    rated = [at for at, kernel_class in enumerate(data["classes"]) if kernel_class["roofline"] is not None]
    if rated:
        yield table("Roofline by class", ROOFLINE_HEADS, [_roofline(source, at, data) for at in rated], words=(0, 7))
    yield notes(kernel_notes(data))
    if data["queues"]:
        rows = [_queue(source, at, queue) for at, queue in enumerate(data["queues"][:MAX_ROWS])]
        yield table("Launched works that wait, by stream", QUEUE_HEADS, rows, words=(0, 1))
    if data["unfused"] is not None and data["unfused"]["chains"]:
        rows = [_chain(source, at, chain) for at, chain in enumerate(data["unfused"]["chains"])]
        yield table("Chains of unfused kernels, and what fusion saves at most", CHAIN_HEADS, rows, words=(0, 1))


def _roofline(source: Source, at: int, data: Kernels) -> list[Html]:
    kernel_class = data["classes"][at]
    roofline = kernel_class["roofline"]
    prefix = ("kernels", "classes", at, "roofline")
    return [
        joined(kernel_class["kind"]),
        source.number(*prefix, "took_ns", form="milliseconds"),
        source.number(*prefix, "flops_per_second", form="flops"),
        source.number(*prefix, "compute_ratio", form="share"),
        source.number(*prefix, "bytes_per_second", form="gigabytes"),
        source.number(*prefix, "memory_ratio", form="share"),
        source.number(*prefix, "flops_per_byte", form="mean"),
        joined("" if roofline is None else roofline["bound"]),
    ]


def _queue(source: Source, at: int, queue: QueueLength) -> list[Html]:
    prefix = ("kernels", "queues", at)
    return [
        joined(str(queue["rank"])),
        joined(f"{queue['stream']} (compute)" if queue["computes"] else queue["stream"]),
        source.number(*prefix, "works", form="count"),
        source.number(*prefix, "mean", form="mean"),
        source.number(*prefix, "empty_ratio", form="share"),
    ]


def _chain(source: Source, at: int, chain: Chain) -> list[Html]:
    prefix = ("kernels", "unfused", "chains", at)
    return [
        joined(chain["phase"]),
        joined(chain_name(chain)),
        source.number(*prefix, "count", form="count"),
        source.number(*prefix, "kernels", form="count"),
        source.number(*prefix, "total_ns", form="milliseconds"),
        source.number(*prefix, "saved_ns", form="milliseconds"),
        source.number(*prefix, "saved_bytes", form="size"),
    ]


def _class(source: Source, at: int, kernel_class: KernelClass) -> list[Html]:
    prefix = ("kernels", "classes", at)
    return [
        joined(kernel_class["kind"]),
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
