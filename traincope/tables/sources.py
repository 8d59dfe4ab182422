"""A run and the results that its tables are made of. Each result is computed when a table first needs it."""

from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path

from traincope.analysis import Analysis, analyze
from traincope.analysis.context import Context
from traincope.analysis.ledger.coverage import ExcludedSteps, find_excluded_steps
from traincope.analysis.ledger.sampling import steps_without_detail
from traincope.timeline import Timeline, open_run


class Sources:
    """A run by its name, its timeline, and results of analyses."""

    def __init__(
        self, read: Callable[[], Timeline], *, name: str, analyze: Callable[[Timeline], Analysis] = analyze
    ) -> None:
        """`read` opens the run, `analyze` gives its analysis. `name`: its name in tables."""
        self._read = read
        self._analyze = analyze
        self.name = name

    @classmethod
    def at(cls, path: Path, *, name: str) -> "Sources":
        """The run in this directory. It is opened when a table first needs it."""
        return cls(partial(open_run, path), name=name)

    @cached_property
    def timeline(self) -> Timeline:
        return self._read()

    @cached_property
    def analysis(self) -> Analysis:
        return self._analyze(self.timeline)

    @cached_property
    def context(self) -> Context:
        """Matched collectives, and the timeline that the ledger measures; without an analysis of the rest."""
        return self.analysis.context if "analysis" in vars(self) else Context(self.timeline)

    @cached_property
    def excluded_steps(self) -> ExcludedSteps:
        return find_excluded_steps(self.context.measured)

    @cached_property
    def undetailed_steps(self) -> frozenset[int]:
        """Steps that some rank recorded without detail, as the report counts them."""
        return steps_without_detail(self.timeline, unwatched=self.excluded_steps.unwatched)
