"""Hardware page: hosts and devices, GPU samples, driver events, and GPUs and kernels in kernel traces."""

from collections.abc import Iterator, Sequence

from dash import html
from dash.development.base_component import Component

from traincope.analysis import QueueLength, gpu_samples
from traincope.analysis.kernels.unfused import Chain
from traincope.figures.efficiency.gpus import gpu_shares
from traincope.figures.efficiency.kernels import kernel_classes
from traincope.figures.steps.gpu_samples import gpu_sample_curves
from traincope.figures.steps.hardware import hardware_events, hardware_over_time
from traincope.report.schema import Document
from traincope.report.text.sections.kernels import chain_name
from traincope.units import numbers
from traincope.viewer.components import absent, section, table
from traincope.viewer.numbers import number
from traincope.viewer.pages.page import Asked, Needs, Page

PARTS = ("compute", "exposed_communication", "exposed_memory", "idle")
MAX_ROWS = 64


def render(asked: Asked) -> Sequence[Component]:
    analysis = asked.analysis
    events = hardware_events(analysis.faults)
    shown = [section("Hosts and devices", _hosts(asked)), _gpu_samples(asked), *_energy(asked)]
    if events:
        began = asked.tiles.header.origin_ns
        end = max([event.at_ns for event in events] + ([analysis.timeline.end_ns] if analysis.timeline.ranks else []))
        shown.append(section("Driver events", asked.graph(hardware_over_time(events, began_ns=began, end_ns=end))))
    else:
        shown.append(absent("No throttling, GPU error or lost GPU was reported by an NVIDIA driver."))
    if analysis.gpu_partition:
        shown.append(section("GPU time", asked.graph(gpu_shares(analysis.gpu_partition)), _gpus(asked)))
    if analysis.kernels is not None:
        shown.append(section("Kernels", asked.graph(kernel_classes(analysis.kernels)), *_kernels(asked)))
    if not analysis.gpu_partition and analysis.kernels is None:
        shown.append(absent("No kernel traces. Level 3 records them, `traincope import` reads them."))
    return shown


def _gpu_samples(asked: Asked) -> Component:
    """GPU samples over the steps, or the reason why there are none."""
    samples = gpu_samples(asked.analysis.timeline)
    if samples:
        drawn = asked.graph(gpu_sample_curves(samples))
        return section("GPU samples", drawn, note="line: mean over ranks; band: lowest to highest rank")
    probes = asked.document["recorder"]["probes"]
    states = dict.fromkeys(probe["state"] for probe in probes if probe["name"] == "hardware")
    why = "; ".join(states) or "missing"
    return absent(f"GPU power, clock, temperature and utilization were not recorded. Hardware probe: {why}.")


def _energy(asked: Asked) -> Iterator[Component]:
    """Energy of each GPU and of the job, if any was recorded."""
    used = asked.analysis.energy
    if used.gpus:
        places: list[tuple[str, tuple[str | int, ...]]] = [
            (numbers(gpu.ranks, "rank"), ("gpus", at)) for at, gpu in enumerate(used.gpus[:MAX_ROWS])
        ]
        rows = [[name, *_joules(asked, *place)] for name, place in (*places, ("all GPUs", ()))]
        note = "NVML's counter, interpolated" if used.reason is None else f"of the job unknown: {used.reason}"
        yield section("Energy", table(("GPU of", "joules per step", "watts"), rows), note=note)


def _joules(asked: Asked, *place: str | int) -> Iterator[Component]:
    for key in ("joules_per_step", "watts"):
        yield number(asked.document, "energy", *place, key, form="mean")


def _hosts(asked: Asked) -> Component:
    """Ranks by host and device."""
    ranks: dict[tuple[str, str], list[int]] = {}
    for rank in asked.analysis.timeline.run.ranks:
        device = rank.info.device.get("name")
        ranks.setdefault((rank.info.host.name, str(device or "unknown")), []).append(rank.rank)
    if not ranks:
        return absent("No records of any rank.")
    rows = [[host, device, numbers(members, "rank")] for (host, device), members in list(ranks.items())[:MAX_ROWS]]
    versions = [list(pair) for pair in sorted(asked.analysis.timeline.run.info.versions.items())]
    return html.Div(
        [
            table(("host", "device", "ranks"), rows, numbers_from=9),
            *([table(("software", "version"), versions, numbers_from=9)] if versions else []),
        ],
        className="beside",
    )


def _gpus(asked: Asked) -> Component:
    document = asked.document
    rows = [
        [
            f"rank {gpu.rank}",
            f"GPU {gpu.device}",
            number(document, "gpu_partition", at, "span_ns", form="duration"),
            *(number(document, "gpu_partition", at, f"{part}_ns", form="duration") for part in PARTS),
        ]
        for at, gpu in enumerate(asked.analysis.gpu_partition[:MAX_ROWS])
    ]
    heads = ("rank", "GPU", "span", "compute", "exposed communication", "exposed memory", "idle")
    return table(heads, rows, numbers_from=2)


def _kernels(asked: Asked) -> Iterator[Component]:
    """Tables of rooflines, queues and chains, as far as there are any."""
    document, traced = asked.document, asked.analysis.kernels
    if traced is None:
        return
    rated = [(at, each.name, each.roofline) for at, each in enumerate(traced.classes)]
    rows = [_roofline(document, at, kind, roofline.bound) for at, kind, roofline in rated if roofline is not None]
    if rows:
        yield table(("class", "ms", "FLOP/s", "of peak", "GB/s", "of peak", "FLOP/byte", "bound by"), rows)
    lengths, unfused = asked.analysis.queue_lengths, asked.analysis.unfused
    if lengths:
        queues = [_queue(document, at, queue) for at, queue in enumerate(lengths[:MAX_ROWS])]
        yield table(("rank", "stream", "works", "waiting on average", "none waits"), queues, numbers_from=2)
    if unfused is not None and unfused.chains:
        chains = [_chain(document, at, chain) for at, chain in enumerate(unfused.chains)]
        heads = ("phase", "operators", "chains", "kernels", "ms", "fusion saves at most, ms")
        yield table(heads, chains, numbers_from=2)


def _roofline(document: Document, at: int, kind: str, bound: str) -> list[object]:
    prefix = ("kernels", "classes", at, "roofline")
    return [
        kind,
        number(document, *prefix, "took_ns", form="milliseconds"),
        number(document, *prefix, "flops_per_second", form="flops"),
        number(document, *prefix, "compute_ratio", form="share"),
        number(document, *prefix, "bytes_per_second", form="gigabytes"),
        number(document, *prefix, "memory_ratio", form="share"),
        number(document, *prefix, "flops_per_byte", form="mean"),
        bound,
    ]


def _queue(document: Document, at: int, queue: QueueLength) -> list[object]:
    prefix = ("kernels", "queues", at)
    return [
        f"rank {queue.rank}",
        f"{queue.stream} (compute)" if queue.computes else queue.stream,
        number(document, *prefix, "works", form="count"),
        number(document, *prefix, "mean", form="mean"),
        number(document, *prefix, "empty_ratio", form="share"),
    ]


def _chain(document: Document, at: int, chain: Chain) -> list[object]:
    prefix = ("kernels", "unfused", "chains", at)
    return [
        chain.phase,
        chain_name(chain),
        number(document, *prefix, "count", form="count"),
        number(document, *prefix, "kernels", form="count"),
        number(document, *prefix, "total_ns", form="milliseconds"),
        number(document, *prefix, "saved_ns", form="milliseconds"),
    ]


PAGE = Page(slug="hardware", title="Hardware", needs=Needs.ANALYSIS, render=render)
