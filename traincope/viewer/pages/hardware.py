"""Hardware: what ran where, what the GPUs and their driver told, and what kernel traces say the GPUs did."""

from collections.abc import Sequence

from dash import html
from dash.development.base_component import Component

from traincope.analysis import gpu_samples
from traincope.figures.gpus import gpu_shares
from traincope.figures.hardware import hardware_events, hardware_over_time
from traincope.figures.kernels import kernel_classes
from traincope.figures.readings import gpu_readings
from traincope.units import numbers
from traincope.viewer.components import absent, section, table
from traincope.viewer.numbers import number
from traincope.viewer.pages.page import Asked, Needs, Page

PARTS = ("compute", "exposed_communication", "exposed_memory", "idle")
MOST_ROWS = 64


def render(asked: Asked) -> Sequence[Component]:
    analysis = asked.analysis
    events = hardware_events(analysis.faults)
    shown = [section("Where it ran", _hosts(asked)), _readings(asked)]
    if events:
        began = asked.tiles.header.origin_ns
        end = max([event.at_ns for event in events] + ([analysis.timeline.end_ns] if analysis.timeline.ranks else []))
        shown.append(
            section("What the driver told", asked.graph(hardware_over_time(events, began_ns=began, end_ns=end)))
        )
    else:
        shown.append(absent("No GPU was throttled, lost or in error, or no driver was there to tell."))
    if analysis.gpu_partition:
        shown.append(section("What the GPUs did", asked.graph(gpu_shares(analysis.gpu_partition)), _gpus(asked)))
    if analysis.kernels is not None:
        shown.append(section("Kernels", asked.graph(kernel_classes(analysis.kernels))))
    if not analysis.gpu_partition and analysis.kernels is None:
        shown.append(absent("No kernel trace was recorded (level 3) or imported."))
    return shown


def _readings(asked: Asked) -> Component:
    """Over the steps; else why there is none."""
    samples = gpu_samples(asked.analysis.timeline)
    if samples:
        drawn = asked.graph(gpu_readings(samples))
        return section("What the GPUs read", drawn, note="mean over the ranks, from the least to the most of them")
    probes = asked.document["recorder"]["probes"]
    states = dict.fromkeys(probe["state"] for probe in probes if probe["name"] == "hardware")
    why = "; ".join(states) or "not there"
    return absent(f"Power, clock, temperature and utilization of GPUs were not recorded: the probe hardware is {why}.")


def _hosts(asked: Asked) -> Component:
    """Ranks by host and device."""
    ranks: dict[tuple[str, str], list[int]] = {}
    for rank in asked.analysis.timeline.run.ranks:
        device = rank.info.device.get("name")
        ranks.setdefault((rank.info.host.name, str(device or "not told")), []).append(rank.rank)
    if not ranks:
        return absent("No rank left records.")
    rows = [[host, device, numbers(own, "rank")] for (host, device), own in list(ranks.items())[:MOST_ROWS]]
    versions = [list(one) for one in sorted(asked.analysis.timeline.run.info.versions.items())]
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
        for at, gpu in enumerate((document["gpu_partition"] or [])[:MOST_ROWS])
    ]
    heads = ("rank", "GPU", "span", "compute", "exposed communication", "exposed memory", "idle")
    return table(heads, rows, numbers_from=2)


PAGE = Page(slug="hardware", title="Hardware", needs=Needs.ANALYSIS, render=render)
