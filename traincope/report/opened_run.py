"""An opened run for scripts and notebooks: its verdict and document, its tables as data frames, and SQL on them.

run = traincope.open_run("traincope_runs/my-job")
run.verdict
run.tables.steps.to_pandas()
run.sql("select rank, max(wall_ns) from steps group by rank").to_polars()
"""

from concurrent.futures import Executor
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from traincope.analysis import Analysis, Finding, analyze
from traincope.errors import MissingDependencyError
from traincope.report.document.document import to_document
from traincope.report.schema import Document
from traincope.report.sections.source import Source
from traincope.store.segments.compacted import import_pyarrow
from traincope.timeline import Timeline
from traincope.timeline import open_run as open_timeline
from traincope.units import count

if TYPE_CHECKING:
    from traincope.tables.frames import RunTable, Tables


@dataclass(frozen=True, kw_only=True, repr=False)
class OpenedRun(Timeline):
    """A timeline, and what follows from it. Each result is computed when it is first read."""

    @cached_property
    def analysis(self) -> Analysis:
        return analyze(self)

    @property
    def verdict(self) -> tuple[Finding, ...]:
        """The findings, the most important first."""
        return self.analysis.verdict

    @cached_property
    def document(self) -> Document:
        """The object that `traincope report --format json` prints."""
        return to_document(self.analysis)

    @cached_property
    def tables(self) -> "Tables":
        """The views of `traincope sql` (docs/reference/sql.md). Raises MissingDependencyError without pyarrow."""
        import_pyarrow("make tables")
        from traincope.tables.frames import Tables
        from traincope.tables.sources import Sources

        name = self.run.path.resolve().name
        return Tables(Sources(lambda: self, name=name, analyze=lambda _: self.analysis))

    def sql(self, query: str) -> "RunTable":
        """Answer one SELECT on the views. Raises UsageError, and MissingDependencyError without DuckDB."""
        return self.tables.sql(query)

    def __repr__(self) -> str:
        steps = {step.number for rank in self.ranks for step in rank.steps}
        return f"<run {self.run.path}: {count(len(self.ranks), 'rank')}, {count(len(steps), 'step')}>"

    def _repr_html_(self) -> str | None:
        """The verdict and the waterfall, for notebooks. None without plotly: the notebook then shows the text."""
        try:
            from traincope.report.html.brief import brief
        except MissingDependencyError:
            return None
        return brief(Source(analysis=self.analysis, document=self.document))


def open_run(path: str | Path, *, executor: Executor | None = None) -> OpenedRun:
    """Open a run directory, or a parent that holds one run.

    `executor` reads its ranks: processes of this machine, or those of a cluster that sees the same files, for example
    Dask's `Client.get_executor()`. Without it, this process does. Raises RunDirectoryError (see `traincope.errors`) if
    there is none.
    """
    timeline = open_timeline(path, executor=executor)
    return OpenedRun(**{field.name: getattr(timeline, field.name) for field in fields(timeline)})
