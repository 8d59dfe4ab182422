"""What the GPUs' driver told during the run."""

from traincope.figures.hardware import hardware_events, hardware_over_time
from traincope.report.faults import began_ns
from traincope.report.html.plots import plot
from traincope.report.html.section import Section
from traincope.report.html.source import Source
from traincope.units import count

TITLE = "Hardware"


def hardware(source: Source) -> Section:
    told = hardware_events(source.analysis.faults)
    if not told:
        why = "The GPUs' driver told of no slowed clock, ECC error or XID, or there was none to ask."
        return Section(name="hardware", title=TITLE, missing=why)
    began = began_ns(source.document)
    caption = "Slowed clocks, power limits and errors by rank; each is listed above"
    figure = hardware_over_time(told, began_ns=began, end_ns=source.document["run"]["end"] or began)
    return Section(
        name="hardware",
        title=TITLE,
        lead=count(len(told), "event"),
        body=(plot(figure, name="driver", caption=caption),),
    )
