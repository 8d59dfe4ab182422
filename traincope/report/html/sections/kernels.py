"""Kernel traces: what each GPU's time was, and which kernels took it."""

from collections.abc import Iterator

from traincope.analysis.kernels import Source as Traced
from traincope.figures.gpus import gpu_shares
from traincope.figures.kernels import kernel_classes
from traincope.report.html.markup import Html, joined
from traincope.report.html.plots import plot
from traincope.report.html.section import Section, notes, table
from traincope.report.html.source import Source
from traincope.report.kernels import cost_heads, scope
from traincope.report.kernels import notes as kernel_notes
from traincope.report.schema import GpuPartition, KernelClass, Kernels

TITLE = "GPUs and kernels"
GPU_HEADS = ("rank", "gpu", "span", "compute", "exposed communication", "exposed memory", "idle")
CLASS_HEADS = ("class", "count", "ms", "share", "rated", "of peak")
MISSING = "No kernel trace was recorded or imported: record some steps at level 3, or `traincope import` a trace."
MOST_ROWS = 64


def kernels(source: Source) -> Section:
    parts, found = source.document["gpu_partition"], source.document["kernels"]
    if not parts and found is None:
        return Section(name="kernels", title=TITLE, missing=MISSING)
    return Section(
        name="kernels",
        title=TITLE,
        lead="" if found is None else scope(found),
        body=(*_gpus(source, parts or []), *([] if found is None else _classes(source, found))),
    )


def _gpus(source: Source, parts: list[GpuPartition]) -> Iterator[Html]:
    if parts:
        caption = "Each GPU from its first event to its last"
        yield plot(gpu_shares(source.analysis.gpu_partition), name="gpus", caption=caption)
        yield table(
            caption, GPU_HEADS, [_gpu(source, at, part) for at, part in enumerate(parts[:MOST_ROWS])], words=(1,)
        )


def _gpu(source: Source, at: int, part: GpuPartition) -> list[Html]:
    own = ("gpu_partition", at)
    shown = ("compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns")
    return [
        joined(str(part["rank"])),
        joined(part["device"]),
        source.number(*own, "span_ns", form="duration"),
        *(source.number(*own, key, form="share", per=(*own, "span_ns")) for key in shown),
    ]


def _classes(source: Source, found: Kernels) -> Iterator[Html]:
    if source.analysis.kernels is not None and found["classes"]:
        what = "Kernels" if found["source"] == Traced.DEVICE else "Operators"
        yield plot(kernel_classes(source.analysis.kernels), name="classes", caption=f"{what} by class")
        heads = cost_heads(found)
        rows = [
            [*_class(source, at, one), *_costs(source, at)[: len(heads)]] for at, one in enumerate(found["classes"])
        ]
        yield table(f"{what} by class", (*CLASS_HEADS, *heads), rows)
    yield notes(kernel_notes(found))


def _class(source: Source, at: int, one: KernelClass) -> list[Html]:
    own = ("kernels", "classes", at)
    return [
        joined(one["kind"]),
        source.number(*own, "count", form="count"),
        source.number(*own, "total_ns", form="milliseconds"),
        source.number(*own, "share_ratio", form="share"),
        source.number(*own, "rated_ns", form="share", per=(*own, "total_ns")),
        source.number(*own, "ideal_ns", form="share", per=(*own, "rated_ns")),
    ]


def _costs(source: Source, at: int) -> tuple[Html, Html]:
    own = ("kernels", "classes", at)
    return (
        source.number(*own, "inefficiency_rank_hours", form="hours"),
        source.number(*own, "inefficiency_money", form="money"),
    )
