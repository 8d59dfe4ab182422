"""GPU section: the time of each traced GPU, and the classes of kernels."""

from collections.abc import Iterator

from traincope.analysis.kernels.kernels import Source as Traced
from traincope.figures.efficiency.gpus import gpu_shares
from traincope.figures.efficiency.kernels import kernel_classes
from traincope.report.html.markup import Html, joined
from traincope.report.html.plots import plot
from traincope.report.html.section import Section, notes, table
from traincope.report.html.source import Source
from traincope.report.schema import GpuPartition, KernelClass, Kernels
from traincope.report.text.sections.kernels import cost_heads, scope
from traincope.report.text.sections.kernels import notes as kernel_notes

TITLE = "GPUs and kernels"
GPU_HEADS = ("rank", "gpu", "span", "compute", "exposed communication", "exposed memory", "idle")
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
    yield notes(kernel_notes(data))


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
