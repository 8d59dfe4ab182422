"""The input of the sections: analysis results for figures, and the document for every number."""

from dataclasses import dataclass

from traincope.analysis import Analysis
from traincope.report.html.markup import Html, tag
from traincope.report.schema import Document
from traincope.report.text.forms import FORMS, Form
from traincope.units import MISSING

Path = tuple[str | int, ...]
"""Keys and positions from the document down to a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The analysis and the document of a run."""

    analysis: Analysis
    document: Document

    def number(self, *path: str | int, form: Form, per: Path | None = None) -> Html:
        """The number at `path` of the document, divided by the number at `per` if given, as text.

        It carries its place (`data-at`, `data-per`), form (`data-as`) and exact value, so a reader can compare it
        with `report --format json`. A missing number reads "-".
        """
        return self.total([path], form=form, per=per)

    def total(self, paths: list[Path], *, form: Form, per: Path | None = None) -> Html:
        """The sum of several numbers, as in `number`; missing only where all of them are."""
        known = [value for path in paths if (value := self._at(path)) is not None]
        over = None if per is None else self._at(per)
        if not known or (per is not None and not over):
            return tag("span", MISSING, class_="missing")
        value = sum(known) / over if over else sum(known)
        return tag(
            "data",
            FORMS[form](value),
            value=repr(value),
            data_at=" ".join(map(_pointer, paths)),
            data_per=None if per is None else _pointer(per),
            data_as=form,
        )

    def _at(self, path: Path) -> float | None:
        value: object = self.document
        for key in path:
            if value is None:
                return None
            value = value[key]  # type: ignore[index]
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _pointer(path: Path) -> str:
    """JSON pointer (RFC 6901) with spaces encoded as in a URL, because spaces separate pointers here."""
    keys = (str(key).replace("~", "~0").replace("/", "~1").replace("%", "%25").replace(" ", "%20") for key in path)
    return "".join(f"/{key}" for key in keys)
