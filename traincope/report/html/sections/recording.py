"""How far the page can be trusted: what was recorded, lost, missing, or left out."""

from traincope.report.html.markup import Html, joined, tag
from traincope.report.html.section import Section, table
from traincope.report.html.source import Source
from traincope.report.recording import lines
from traincope.report.schema import Probe
from traincope.units import numbers

TITLE = "Recording"
HEADS = ("probe", "state", "ranks")


def recording(source: Source) -> Section:
    said = [tag("li", line.plain, class_="severe" if line.style else None) for line in lines(source.document)]
    probes = source.document["recorder"]["probes"]
    states = table("What was watched", HEADS, [_probe(probe) for probe in probes], words=(0, 1, 2))
    details = tag("details", tag("summary", "What was watched"), states) if probes else joined()
    return Section(name="recording", title=TITLE, body=(tag("ul", *said, class_="facts"), details))


def _probe(probe: Probe) -> list[Html]:
    return [joined(probe["name"]), joined(probe["state"]), joined(numbers(probe["ranks"]))]
