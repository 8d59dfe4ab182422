"""Hardware page: hosts and devices, GPU samples, driver events, and GPUs and kernels in kernel traces."""

from collections.abc import Sequence

from dash import html
from dash.development.base_component import Component

from traincope.analysis import gpu_samples
from traincope.figures.steps.gpu_samples import gpu_sample_curves
from traincope.figures.steps.hardware import hardware_events, hardware_over_time
from traincope.report.sections.energy import energy
from traincope.report.sections.kernels import kernels
from traincope.units import numbers
from traincope.viewer.components import absent, section, table
from traincope.viewer.pages.page import Asked, Needs, Page
from traincope.viewer.sections import rendered

MAX_ROWS = 64


def render(asked: Asked) -> Sequence[Component]:
    analysis = asked.analysis
    events = hardware_events(analysis.faults)
    shown = [section("Hosts and devices", _hosts(asked)), _gpu_samples(asked)]
    if analysis.energy.gpus:
        shown.append(rendered(energy(asked.source), asked))
    if events:
        began = asked.tiles.header.origin_ns
        end = max([event.at_ns for event in events] + ([analysis.timeline.end_ns] if analysis.timeline.ranks else []))
        shown.append(section("Driver events", asked.graph(hardware_over_time(events, began_ns=began, end_ns=end))))
    else:
        shown.append(absent("No throttling, GPU error or lost GPU was reported by an NVIDIA driver."))
    shown.append(rendered(kernels(asked.source), asked))
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


PAGE = Page(slug="hardware", title="Hardware", needs=Needs.ANALYSIS, render=render)
