"""What the sections are made of: results for their figures, and the document for every number."""

from dataclasses import dataclass

from traincope.analysis import Analysis
from traincope.report.forms import FORMS, Form
from traincope.report.html.markup import Html, tag
from traincope.report.schema import Document
from traincope.units import MISSING

Path = tuple[str | int, ...]
"""Keys and positions from the document down to a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One run."""

    analysis: Analysis
    document: Document

    def number(self, *path: str | int, form: Form, per: Path | None = None) -> Html:
        """The number at `path` of the document, over the one at `per` where that is given, as text.

        It carries where it is from (`data-at`, `data-per`), how it is written (`data-as`) and its exact value, so
        that whoever reads the page can hold it against `report --format json`. Missing reads "-".
        """
        return self.total([path], form=form, per=per)

    def total(self, paths: list[Path], *, form: Form, per: Path | None = None) -> Html:
        """As `number`, of the sum of several; missing only where all of them are."""
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
        found: object = self.document
        for key in path:
            if found is None:
                return None
            found = found[key]  # type: ignore[index]
        return found if isinstance(found, int | float) and not isinstance(found, bool) else None


def _pointer(path: Path) -> str:
    """RFC 6901; spaces, which part pointers here, as in a URL."""
    keys = (str(key).replace("~", "~0").replace("/", "~1").replace("%", "%25").replace(" ", "%20") for key in path)
    return "".join(f"/{key}" for key in keys)
