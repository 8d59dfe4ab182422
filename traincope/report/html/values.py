"""Words of a section as HTML: a number carries its place and its exact value."""

from typing import assert_never

from traincope.explanations import Explanation, explanations
from traincope.palette import colour
from traincope.report.html.markup import Html, joined, tag
from traincope.report.schema import Document
from traincope.report.sections.section import Alarm, Aside, Kind, Link, Number, Term, Words
from traincope.report.sections.values import pointer, value_of, written


def markup(document: Document, words: Words) -> Html:
    """Words with their numbers. Plain text is escaped."""
    match words:
        case str():
            return joined(words)
        case Number():
            return number_markup(document, words)
        case Term():
            return joined(swatch(colour(words.name)), words.words or words.name)
        case Alarm():
            return tag("strong", words.words, class_="severe")
        case Aside():
            return tag("span", words.words, class_="missing")
        case Kind():
            return tag("a", words.words, href=f"#{name_of(explanations()[words.name])}")
        case Link():
            return joined(words.words)
        case tuple():
            return joined(*(markup(document, each) for each in words))
        case _:
            assert_never(words)


def number_markup(document: Document, shown: Number) -> Html:
    """A number as text with its place (`data-at`, `data-per`), form (`data-as`) and exact value.

    So a reader can compare it with `report --format json`. A missing number reads "-".
    """
    value = value_of(document, shown)
    if value is None:
        return tag("span", written(document, shown), class_="missing")
    return tag(
        "data",
        written(document, shown),
        value=repr(value),
        data_at=" ".join(map(pointer, shown.paths)),
        data_per=None if shown.per is None else pointer(shown.per),
        data_as=shown.form,
    )


def swatch(colour: str) -> Html:
    """A dot in the colour that the figures use."""
    return tag("span", class_="swatch", style=f"background:{colour}", aria_hidden="true")


def name_of(entry: Explanation) -> str:
    """The anchor of an explanation on this page."""
    return f"explained-{entry.anchor}"
