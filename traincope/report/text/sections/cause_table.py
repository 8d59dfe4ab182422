"""The causes within terms as a table of HTML pages: which of them are shown, and their words."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from traincope.analysis.verdict.losses.term_causes import Basis
from traincope.report.schema import Document
from traincope.report.text.sections.waterfall import named_cause

TITLE = "Causes within the terms"
LEAD = "slices of a term do not overlap; the rest has no known cause"
HEADS = ("term", "cause", "basis", "share of the term", "over all ranks")
NUM_WORDS = 3
"""Number of first columns that contain words."""
MIN_OF_TERM = 0.01
"""Smallest share of its term of a cause in the table; JSON has all."""
MAX_NAMED_TERMS = 2
BASES: Mapping[str, str] = {
    Basis.PROPORTION: "estimate, in proportion",
    Basis.AT_PEAK: "lower bound, at peak",
    Basis.AT_MOST: "upper bound",
}
"""Basis of a cause -> its words in the table; others are printed by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseRow:
    """A row of the table; its two numbers are `ratio` and `ns` at `place` of the document."""

    term: str
    cause: str
    place: tuple[str | int, ...]
    basis: str


def cause_rows(document: Document) -> Iterator[CauseRow]:
    """Yield the causes that matter to their term, in the order of the document."""
    for at, of in enumerate(document["causes"]):
        for slot, cause in enumerate(of["causes"]):
            if abs(cause["ratio"] or 0.0) >= MIN_OF_TERM:
                yield CauseRow(
                    term=" + ".join(of["terms"]) if len(of["terms"]) <= MAX_NAMED_TERMS else "step",
                    cause=named_cause(cause),
                    place=("causes", at, "causes", slot),
                    basis=BASES.get(cause["basis"], cause["basis"]),
                )
