"""The verdict and the ledger as a fragment of HTML for notebooks: no scripts, no style sheet, no links."""

from collections.abc import Iterator

from traincope.palette import GOOD, SEVERE, colour
from traincope.report.html.markup import Html, tag
from traincope.report.schema import Document
from traincope.report.sections.head import facts
from traincope.report.sections.ledger import ledger
from traincope.report.sections.section import Bars, Findings, Item, Lines, On, Row, Section, Term
from traincope.report.sections.source import Source
from traincope.report.sections.values import lengths, plain
from traincope.report.sections.verdict import verdict
from traincope.units import count

MAX_FINDINGS = 5
BAR_REM = 16
"""Width of the longest bar."""
QUIET = "opacity:.7;font-size:.9em"
CELL = "padding:.1em .8em .1em 0;white-space:nowrap;border:0;background:none"
LEFT, RIGHT = f"{CELL};text-align:left", f"{CELL};text-align:right"


def brief(source: Source) -> Html:
    """Show the findings, at most five, and each term's share of step time. All texts of the run are escaped."""
    document, time = source.document, ledger(source)
    findings = document["verdict"]
    hidden = len(findings) - MAX_FINDINGS
    more = [tag("p", f"and {count(hidden, 'more finding')} in the report", style=QUIET)] if hidden > 0 else []
    return tag(
        "div",
        tag("p", tag("strong", document["run"]["id"]), " ", tag("span", ", ".join(facts(document)), style=QUIET)),
        *_shown(verdict(findings[:MAX_FINDINGS], cost=None), document),
        *more,
        *(_shown(time, document) if time.missing is None else ()),
        style="line-height:1.4;max-width:60rem",
    )


def _shown(section: Section, document: Document) -> Iterator[Html]:
    """The section's lead, its findings, bars and notes. Its tables and figures are in the report."""
    yield tag("p", plain(document, section.lead) if section.missing is None else section.missing, style=QUIET)
    for part in section.parts:
        match part:
            case Findings():
                yield tag("ol", *(tag("li", *_finding(each, document)) for each in part.items))
            case Bars():
                named = zip(part.rows, lengths(document, part), strict=True)
                rows = (_row(row, document, length=length) for row, length in named)
                yield tag("table", tag("tbody", *rows, _row(part.whole, document)), style="border-collapse:collapse")
            case Lines() if part.lines and part.on is not On.CONSOLE:
                yield tag("ul", *(tag("li", plain(document, line)) for line in part.lines), style=QUIET)


def _finding(item: Item, document: Document) -> Iterator[Html]:
    yield tag("strong", item.kind.words, style=f"color:{GOOD if item.good else SEVERE}")
    yield tag("span", f" {plain(document, item.facts)}", style=QUIET)
    yield tag("div", item.evidence)
    if item.advice:
        yield tag("div", tag("strong", "Do: "), item.advice)


def _row(row: Row, document: Document, *, length: float = 0.0) -> Html:
    """A term with its bar, or a cause below it."""
    name, *numbers = (plain(document, cell) for cell in row)
    cells = [tag("td", number, style=RIGHT) for number in numbers]
    if not isinstance(row[0], Term):
        return tag("tr", tag("td", name, style=f"{LEFT};padding-left:1.2em"), *cells, style=QUIET)
    bar = f"background:{colour(row[0].name)};height:.8em;width:{max(length, 0.0) * BAR_REM:.2f}rem"
    return tag("tr", tag("td", name, style=LEFT), *cells, tag("td", tag("div", style=bar), style=LEFT))
