"""The input of the sections that make HTML themselves."""

from dataclasses import dataclass

from traincope.report.html.markup import Html
from traincope.report.html.values import number_markup
from traincope.report.sections.forms import Form
from traincope.report.sections.section import Number, Path
from traincope.report.sections.source import Source as Results


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(Results):
    """The analysis and the document of a run, and its numbers as HTML."""

    def number(self, *path: str | int, form: Form, per: Path | None = None) -> Html:
        """The number at `path` of the document, divided by the number at `per` if given."""
        return self.total([path], form=form, per=per)

    def total(self, paths: list[Path], *, form: Form, per: Path | None = None) -> Html:
        """The sum of several numbers; missing only where all of them are."""
        return number_markup(self.document, Number(tuple(paths), form, per))
