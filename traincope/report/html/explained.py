"""Explained section: the entries of docs/findings for the findings and faults of this report."""

from collections.abc import Iterable, Iterator

from traincope.explanations import Explanation, explanations
from traincope.report.html.markup import Html, markdown, tag
from traincope.report.html.section import Section
from traincope.report.html.values import name_of
from traincope.report.sections.source import Source

NAME = "explained"


def explained(source: Source) -> Section:
    document = source.document
    kinds = [each["kind"] for each in (*document["verdict"], *document["faults"])]
    known = explanations()
    entries = {known[kind].place: known[kind] for kind in kinds}
    return Section(
        name=NAME,
        title="Explained",
        lead="what each kind of finding and fault means, how we know, what to do, how to check",
        body=tuple(_entries(entries.values())),
        missing=None if entries else "No finding and no fault.",
    )


def _entries(entries: Iterable[Explanation]) -> Iterator[Html]:
    for entry in entries:
        yield tag("article", tag("h3", entry.title), markdown(entry.text), id=name_of(entry))
