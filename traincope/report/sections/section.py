"""The parts of a section: words with numbers in them, tables, drawings, lines."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from traincope.report.sections.forms import Form

Path: TypeAlias = tuple[str | int, ...]
"""Keys and positions from the document down to a number."""


@dataclass(frozen=True, slots=True)
class Number:
    """The sum of the numbers at `paths` of the document, divided by the one at `per`, written as `form` says."""

    paths: tuple[Path, ...]
    form: Form
    per: Path | None = None


def number(*path: str | int, form: Form, per: Path | None = None) -> Number:
    """The number at `path`."""
    return Number((path,), form, per)


@dataclass(frozen=True, slots=True)
class Term:
    """A name that figures draw in a colour: a term of the ledger, or a part of the job's time."""

    name: str
    words: str = ""
    """Shown in place of the name."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """Words that must be seen first in their row."""

    words: str


@dataclass(frozen=True, slots=True)
class Aside:
    """Words whose row is only context for the others."""

    words: str


@dataclass(frozen=True, slots=True)
class Kind:
    """The kind of a finding or fault; HTML and the viewer link it to its explanation."""

    name: str

    @property
    def words(self) -> str:
        return self.name.replace("_", " ")


@dataclass(frozen=True, slots=True)
class Link:
    """Words that the viewer links to another of its pages, at a step or an instant if one is given."""

    words: str
    page: str
    step: int | None = None
    at_ns: int | None = None
    """Instant of the common axis."""
    ranks: tuple[int, ...] = ()


Words: TypeAlias = "str | Number | Term | Alarm | Aside | Kind | Link | tuple[Words, ...]"
"""Text with numbers in it. A string may hold names of a run: each medium escapes it."""


def separated(parts: Iterable[Words], by: str) -> Words:
    """The parts in one line, with `by` between them."""
    return tuple(each for part in parts for each in (by, part))[1:]


class On(Enum):
    """Where a part is shown."""

    ALL = "all"
    CONSOLE = "console"
    SCREEN = "screen"
    """HTML and the viewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under heads; columns not in `left` are numbers."""

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[Words, ...], ...]
    left: frozenset[int] = frozenset({0})
    wraps: bool = False
    """The last column has sentences, which a console wraps."""
    on: On = On.ALL
    folded: bool = False
    """True if a screen shows it on request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A figure of the results `of`, by its name in `figures.drawn`; those of a console are in `report.text.section`."""

    figure: str
    of: tuple[object, ...]
    caption: str
    on: On = On.SCREEN
    links: str = ""
    """Kind of mark that the viewer turns into links to its timeline; empty: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A figure of which a reader chooses the scope, the first by default; the rest as in `Drawing`."""

    figure: str
    groups: tuple[tuple[str, ...], ...]
    """Scopes by kind, the fewest first: a medium that holds all figures leaves out large groups."""
    of: Callable[[str], tuple[object, ...]]
    """The results of a scope."""
    caption: str
    on: On = On.SCREEN
    links: str = ""


Row: TypeAlias = tuple[Term | str, Number, *tuple[Words, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """Numbers of terms in rows, each with a bar of its first number. Screens have a figure instead.

    A row that no `Term` names is a cause within the term above it, without a bar.
    """

    rows: tuple[Row, ...]
    whole: Row
    """The row of all terms."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Notes below what precedes them, one statement each."""

    lines: tuple[Words, ...]
    on: On = On.ALL
    facts: bool = False
    """True if the lines are what the section is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Lines that stay as they are, e.g. a stack. A console leaves out the caption, as that of a table."""

    caption: str
    lines: tuple[str, ...]
    on: On = On.ALL


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A finding: what it is about, why we know, and what to do."""

    kind: Kind
    good: bool
    """True if it names neither a fault nor a loss."""
    facts: Words
    """Ranks and steps, confidence, gain."""
    evidence: str
    evidence_in: str
    """Name of the section that shows the evidence; empty within it."""
    advice: str


@dataclass(frozen=True, slots=True)
class Findings:
    """A numbered list of findings."""

    items: tuple[Item, ...]
    on: On = On.ALL


Shown: TypeAlias = Table | Drawing | Choice | Lines | Listing | Findings
Part: TypeAlias = Shown | Bars


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading with one line next to it, and what stands below."""

    name: str
    """Its anchor."""
    title: str
    lead: Words = ""
    parts: tuple[Part, ...] = ()
    links: tuple[Link, ...] = ()
    within: "tuple[Section, ...]" = ()
    """Sections that screens show below it."""
    missing: str | None = None
    """Why the section is empty, as a sentence; it then has no parts."""

    @property
    def on_screens(self) -> tuple[Shown, ...]:
        """The parts that HTML and the viewer show: not those of a console, nor tables without rows."""
        shown = (part for part in self.parts if not isinstance(part, Bars) and part.on is not On.CONSOLE)
        return tuple(part for part in shown if not isinstance(part, Table) or part.rows)


def rows(each: Iterable[Iterable[Words]]) -> tuple[tuple[Words, ...], ...]:
    """Rows of a table."""
    return tuple(map(tuple, each))
