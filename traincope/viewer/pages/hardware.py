"""Hardware page: hosts and devices, GPU samples, driver events, and the GPUs' time in kernel traces."""

from collections.abc import Sequence

from dash import html
from dash.development.base_component import Component

from traincope.analysis import gpu_samples
from traincope.figures.efficiency.gpus import gpu_shares
from traincope.figures.efficiency.kernels import kernel_classes
from traincope.figures.steps.gpu_samples import gpu_sample_curves
from traincope.figures.steps.hardware import hardware_events, hardware_over_time
from traincope.units import numbers
from traincope.viewer.components import absent, section, table
from traincope.viewer.numbers import number
from traincope.viewer.pages.page import Asked, Needs, Page

PARTS = ("compute", "exposed_communication", "exposed_memory", "idle")
MAX_ROWS = 64


def render(asked: Asked) -> Sequence[Component]:
    analysis = asked.analysis
    events = hardware_events(analysis.faults)
    shown = [section("Hosts and devices", _hosts(asked)), _gpu_samples(asked)]
    if events:
        began = asked.tiles.header.origin_ns
        end = max([event.at_ns for event in events] + ([analysis.timeline.end_ns] if analysis.timeline.ranks else []))
        shown.append(section("Driver events", asked.graph(hardware_over_time(events, began_ns=began, end_ns=end))))
    else:
        shown.append(absent("No throttling, GPU error or lost GPU was reported by an NVIDIA driver."))
    if analysis.gpu_partition:
        shown.append(section("GPU time", asked.graph(gpu_shares(analysis.gpu_partition)), _gpus(asked)))
    if analysis.kernels is not None:
        shown.append(section("Kernels", asked.graph(kernel_classes(analysis.kernels))))
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
            f"rank {gpu['rank']}",
            f"GPU {gpu['device']}",
            number(document, "gpu_partition", at, "span_ns", form="duration"),
            *(number(document, "gpu_partition", at, f"{part}_ns", form="duration") for part in PARTS),
        ]
        for at, gpu in enumerate((document["gpu_partition"] or [])[:MAX_ROWS])
    ]
    heads = ("rank", "GPU", "span", "compute", "exposed communication", "exposed memory", "idle")
    return table(heads, rows, numbers_from=2)


PAGE = Page(slug="hardware", title="Hardware", needs=Needs.ANALYSIS, render=render)
