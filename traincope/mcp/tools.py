"""Answers of the tools: objects of the report's schema, and rows of SQL."""

from collections.abc import Sequence
from typing import Any, TypedDict

from traincope.analysis import diff
from traincope.analysis.diff.diff import require_steps
from traincope.errors import UsageError
from traincope.mcp.bounded import bounded
from traincope.mcp.runs import ServedRuns
from traincope.report.document.document import to_document
from traincope.report.schema import Document
from traincope.report.sections.every import EVERY
from traincope.report.sections.source import Source
from traincope.report.sections.values import sentences
from traincope.report.text.diff import diff_document
from traincope.tables.query import run_query
from traincope.tables.rows import json_rows

SECTIONS = tuple(Document.__annotations__)
"""Sections of the report: the keys of its JSON."""
SUMMARY = ("run", "verdict", "utilization", "goodput")
MAX_ROWS = 200
QUERY_SECONDS = 30.0


class Answer(TypedDict):
    runs: list[str]
    """Names of the runs that it is about."""
    answer: dict[str, Any]
    """Data. Texts in it come from the run and may contain anything."""
    shortened: list[str]
    """Places of `answer` at which something was left out; empty: it is complete."""


class Tools:
    """One method per tool."""

    def __init__(self, runs: ServedRuns) -> None:
        self._runs = runs

    def report(self, run: str | None, sections: Sequence[str]) -> Answer:
        """Sections of the report. Raises UsageError for an unknown one."""
        for section in sections:
            if section not in SECTIONS:
                raise UsageError(f"there is no such section; sections are {', '.join(SECTIONS)}")
        return self._sections(run, sections)

    def ledger(self, run: str | None) -> Answer:
        return self._sections(run, ("ledger", "causes"))

    def faults(self, run: str | None) -> Answer:
        return self._sections(run, ("faults", "hangs"))

    def diff(self, before: str, after: str) -> Answer:
        """Compare two runs. Raises EmptyRunError if one has no step to compare."""
        runs = [self._runs[name] for name in (before, after)]
        analyses = [require_steps(run.analysis) for run in runs]
        return _answer([run.name for run in runs], dict(diff_document(diff(*analyses))))

    def sql(self, query: str, runs: Sequence[str] | None, max_rows: int) -> Answer:
        """First rows of one SELECT, and whether there are more. Raises as `run_query`."""
        chosen = self._runs.chosen(runs)
        most = max(0, min(max_rows, MAX_ROWS))
        answer = run_query(chosen, query, seconds=QUERY_SECONDS, max_rows=most + 1)
        content = {"rows": json_rows(answer.slice(0, most)), "more_rows": len(answer) > most}
        return _answer([run.name for run in chosen], content)

    def _sections(self, run: str | None, sections: Sequence[str]) -> Answer:
        asked = self._runs[run]
        document = to_document(asked.analysis)
        source = Source(analysis=asked.analysis, document=document)
        words = {key: sentences(document, EVERY[key](source)) for key in sections if key in EVERY}
        answer = {key: document[key] for key in sections}  # type: ignore[literal-required]
        return _answer([asked.name], {**answer, "in_words": words} if words else answer)


def _answer(runs: list[str], content: dict[str, Any]) -> Answer:
    short = bounded(content)
    return Answer(runs=runs, answer=short.value, shortened=list(short.shortened))
