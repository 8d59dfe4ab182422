"""The top of the page: the run, its size and its headline numbers."""

from traincope.report.html.markup import Html, tag
from traincope.report.html.values import number_markup
from traincope.report.schema import Document
from traincope.report.sections.head import facts, headline


def head(document: Document) -> Html:
    numbers = [
        tag("div", tag("dt", name), tag("dd", number_markup(document, number)))
        for name, number in headline(document).items()
    ]
    return tag(
        "header",
        tag("h1", document["run"]["id"]),
        tag("p", ", ".join(facts(document)), class_="where"),
        tag("dl", *numbers, class_="numbers"),
    )
