"""`plan search` as one HTML file without scripts."""

from collections.abc import Iterable

from traincope.cli.plan.search.text import HEADS, cells, nothing, rejected, why, winner
from traincope.plan.search.answer import Answer
from traincope.report.html.markup import Html, tag
from traincope.report.html.section import notes, table

STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem;color-scheme:light dark}"
    "table{border-collapse:collapse}th,td{padding:.3rem .8rem;text-align:right;white-space:nowrap}"
    ".words{text-align:left}.scroll{overflow-x:auto}tbody tr:first-child{font-weight:600}"
)
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def page(answer: Answer) -> str:
    """The whole file."""
    title = f"{answer['parameters'] / 1e9:.4g} billion parameters on {answer['gpus']:,} {answer['gpu']}"
    sections = [_section("Rejected", rejected(answer))]
    if answer["ranked"]:
        rows = [[cell.strip() for cell in cells(ranked)] for ranked in answer["ranked"]]
        ranked = tag("section", tag("h2", "Layouts, fastest first"), table("Layouts", HEADS, rows, words=(0, 1)))
        sections = [ranked, _section("The fastest", winner(answer)), _section("Compared", why(answer)), *sections]
    else:
        sections = [_section("No layout fits", nothing(answer)), *sections]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{title} - traincope"),
        tag("style", Html(STYLE)),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', tag('h1', title), *sections), lang='en')}\n"


def _section(title: str, lines: Iterable[str]) -> Html:
    return tag("section", tag("h2", title), notes(lines))
