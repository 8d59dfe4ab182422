"""Recording section: recorded, dropped, missing and excluded data."""

from traincope.report.html.markup import Html, joined, tag
from traincope.report.html.section import Section, table
from traincope.report.html.source import Source
from traincope.report.schema import Probe
from traincope.report.text.sections.recording import lines
from traincope.units import numbers

TITLE = "Recording"
HEADS = ("probe", "state", "ranks")


def recording(source: Source) -> Section:
    items = [
        tag("li", line.plain, class_="severe" if line.style else None)
        for line in lines(source.document, source.analysis)
    ]
    probes = source.document["recorder"]["probes"]
    states = table("Probes", HEADS, [_probe(probe) for probe in probes], words=(0, 1, 2))
    details = tag("details", tag("summary", "Probes"), states) if probes else joined()
    return Section(name="recording", title=TITLE, body=(tag("ul", *items, class_="facts"), details))


def _probe(probe: Probe) -> list[Html]:
    return [joined(probe["name"]), joined(probe["state"]), joined(numbers(probe["ranks"]))]
