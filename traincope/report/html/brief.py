"""The verdict and the waterfall as a fragment of HTML for notebooks: no scripts, no style sheet, no links."""

from collections.abc import Iterator

from traincope.palette import GOOD, SEVERE, colour
from traincope.report.html.markup import Html, joined, tag
from traincope.report.schema import Document, Ledger
from traincope.report.sections.counted_steps import counted_steps, mean_step_ns
from traincope.report.sections.section import Item
from traincope.report.sections.values import plain
from traincope.report.sections.verdict import NOTHING, item
from traincope.report.text.text import facts
from traincope.units import count, milliseconds, share

MAX_FINDINGS = 5
MIN_RATIO = 0.0005
"""Share of a step below which a term has no row."""
BAR_REM = 16
"""Width of the longest bar."""
QUIET = "opacity:.7;font-size:.9em"
CELL = "padding:.1em .8em .1em 0;white-space:nowrap;border:0;background:none"
LEFT, RIGHT = f"{CELL};text-align:left", f"{CELL};text-align:right"


def brief(document: Document) -> Html:
    """Show the findings, at most five, and each term's share of step time. All texts of the run are escaped."""
    return tag(
        "div",
        tag("p", tag("strong", document["run"]["id"]), " ", tag("span", ", ".join(facts(document)), style=QUIET)),
        *_findings(document),
        *([] if document["ledger"] is None else [_waterfall(document["ledger"])]),
        style="line-height:1.4;max-width:60rem",
    )


def _findings(document: Document) -> Iterator[Html]:
    findings = document["verdict"]
    if not findings:
        yield tag("p", NOTHING)
        return
    items = [item(finding, at, cost=None) for at, finding in enumerate(findings[:MAX_FINDINGS])]
    yield tag("ol", *(tag("li", *_finding(each, document)) for each in items))
    if len(findings) > MAX_FINDINGS:
        yield tag("p", f"and {count(len(findings) - MAX_FINDINGS, 'more finding')} in the report", style=QUIET)


def _finding(item: Item, document: Document) -> Iterator[Html]:
    yield tag("strong", item.title, style=f"color:{GOOD if item.good else SEVERE}")
    yield tag("span", f" {plain(document, item.facts)}", style=QUIET)
    yield tag("div", item.evidence)
    if item.advice:
        yield tag("div", tag("strong", "Do: "), item.advice)


def _waterfall(ledger: Ledger) -> Html:
    shown = {term: ratio for term, ratio in ledger["waterfall"].items() if ratio and abs(ratio) >= MIN_RATIO}
    longest = max((abs(ratio) for ratio in shown.values()), default=1.0)
    rows = [_row(ledger, term, ratio / longest) for term, ratio in shown.items()]
    head = f"mean step {milliseconds(mean_step_ns(ledger))} ms over {count(len(ledger['ranks']), 'rank')} and "
    return tag(
        "table",
        tag("caption", f"{head}{counted_steps(ledger)}", style=f"{QUIET};caption-side:top;text-align:left"),
        tag("tbody", *rows),
        style="border-collapse:collapse",
    )


def _row(ledger: Ledger, term: str, length: float) -> Html:
    per_step = milliseconds((ledger["terms"][term] or 0) / ledger["rank_steps"])
    bar = f"background:{colour(term)};height:.8em;width:{max(length, 0.0) * BAR_REM:.2f}rem"
    return tag(
        "tr",
        tag("td", term, style=LEFT),
        tag("td", share(ledger["waterfall"][term]), style=RIGHT),
        tag("td", joined(per_step, " ms"), style=RIGHT),
        tag("td", tag("div", style=bar), style=LEFT),
    )
