"""The input of sections: analysis results, and the document for every number."""

from dataclasses import dataclass

from traincope.analysis import Analysis
from traincope.report.schema import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The analysis and the document of a run."""

    analysis: Analysis
    document: Document
