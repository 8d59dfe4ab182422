"""Hardware section: GPU samples over the steps, and the driver's events."""

from collections.abc import Iterator

from traincope.analysis import gpu_samples
from traincope.figures.steps.gpu_samples import gpu_sample_curves
from traincope.figures.steps.hardware import hardware_events, hardware_over_time
from traincope.report.html.markup import Html
from traincope.report.html.plots import plot
from traincope.report.html.section import Section
from traincope.report.html.source import Source
from traincope.report.text.sections.faults import began_ns
from traincope.units import count

TITLE = "Hardware"


def hardware(source: Source) -> Section:
    events = hardware_events(source.analysis.faults)
    body = tuple(_figures(source))
    if not body:
        why = "No throttling, GPU error or lost GPU was reported by an NVIDIA driver."
        return Section(name="hardware", title=TITLE, missing=why)
    return Section(name="hardware", title=TITLE, lead=count(len(events), "event"), body=body)


def _figures(source: Source) -> Iterator[Html]:
    samples, events = gpu_samples(source.analysis.timeline), hardware_events(source.analysis.faults)
    if samples:
        caption = "Line: mean over ranks; band: lowest to highest rank"
        yield plot(gpu_sample_curves(samples), name="readings", caption=caption)
    if events:
        began = began_ns(source.analysis)
        figure = hardware_over_time(events, began_ns=began, end_ns=source.document["run"]["end"] or began)
        caption = "Throttling, power limits and errors by rank; the Faults section lists each"
        yield plot(figure, name="driver", caption=caption)
