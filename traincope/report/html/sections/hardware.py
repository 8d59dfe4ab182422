"""What the GPUs read over the steps, and what their driver told."""

from collections.abc import Iterator

from traincope.analysis import gpu_samples
from traincope.figures.hardware import hardware_events, hardware_over_time
from traincope.figures.readings import gpu_readings
from traincope.report.faults import began_ns
from traincope.report.html.markup import Html
from traincope.report.html.plots import plot
from traincope.report.html.section import Section
from traincope.report.html.source import Source
from traincope.units import count

TITLE = "Hardware"


def hardware(source: Source) -> Section:
    told = hardware_events(source.analysis.faults)
    body = tuple(_figures(source))
    if not body:
        why = "The GPUs' driver told of no slowed clock, ECC error or XID, or there was none to ask."
        return Section(name="hardware", title=TITLE, missing=why)
    return Section(name="hardware", title=TITLE, lead=count(len(told), "event"), body=body)


def _figures(source: Source) -> Iterator[Html]:
    samples, told = gpu_samples(source.analysis.timeline), hardware_events(source.analysis.faults)
    if samples:
        caption = "Mean over the ranks, from the least to the most of them"
        yield plot(gpu_readings(samples), name="readings", caption=caption)
    if told:
        began = began_ns(source.document)
        figure = hardware_over_time(told, began_ns=began, end_ns=source.document["run"]["end"] or began)
        caption = "Slowed clocks, power limits and errors by rank; each is listed above"
        yield plot(figure, name="driver", caption=caption)
