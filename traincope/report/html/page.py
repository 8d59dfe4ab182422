"""The whole file: policy, style, sections, data, scripts."""

import base64
import gzip
from functools import cache
from hashlib import sha256
from importlib.resources import files

from traincope.analysis import Analysis
from traincope.figures.drawing.serialization import script
from traincope.report.document.costs import with_energy_price
from traincope.report.document.document import to_document, to_json
from traincope.report.html.explained import explained
from traincope.report.html.head import head
from traincope.report.html.markup import Html, block, tag
from traincope.report.html.plots import templates
from traincope.report.html.section import Section, on_page
from traincope.report.sections.every import EVERY
from traincope.report.sections.reliability import is_logbook
from traincope.report.sections.source import Source
from traincope.units import CURRENCY

NO_SCRIPT = "Figures need JavaScript. The tables hold every number."


def to_html(
    analysis: Analysis,
    *,
    price_per_gpu_hour: float | None = None,
    price_per_kwh: float | None = None,
    currency: str = CURRENCY,
) -> str:
    """The report as one HTML file that works offline.

    It holds the whole document of `to_document` as JSON (`<script id="document">`), the source of every number on the
    page. The prices are passed to `to_document`. Raises MissingDependencyError where plotly is not installed.
    """
    analysis = with_energy_price(analysis, price_per_kwh=price_per_kwh, currency=currency)
    document = to_document(analysis, price_per_gpu_hour=price_per_gpu_hour, currency=currency)
    source = Source(analysis=analysis, document=document)
    shown = sections(source)
    plotly, page_script = script(), _asset("page.js")
    body = tag(
        "body",
        tag("a", "Skip to the verdict", href="#verdict", class_="skip"),
        _navigation(shown),
        tag("main", head(document), tag("noscript", tag("p", NO_SCRIPT)), *(section.html for section in shown)),
        block(to_json(document), kind="application/json", name="document"),
        templates(),
        block(_packed(plotly), kind="application/octet-stream", name="plotly"),
        tag("script", Html(page_script)),
    )
    page = tag("html", _head(document["run"]["id"], scripts=(plotly, page_script)), body, lang="en")
    return f"<!doctype html>\n{page}\n"


def sections(source: Source) -> list[Section]:
    """The sections of the page from top to bottom; of a logbook, those with evidence."""
    document = source.document
    every = [*(on_page(make(source), document) for make in EVERY.values()), explained(source)]
    return [section for section in every if section.missing is None] if is_logbook(document) else every


def _head(title: str, *, scripts: tuple[str, ...]) -> Html:
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(scripts)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", f"{title} - traincope"),
        tag("style", Html(_asset("page.css"))),
    )


def _policy(scripts: tuple[str, ...]) -> str:
    """The content policy: no network access, only these scripts by hash, and inline styles for plotly."""
    hashes = " ".join(f"'sha256-{base64.b64encode(sha256(script.encode()).digest()).decode()}'" for script in scripts)
    rules = ("default-src 'none'", f"script-src {hashes}", "style-src 'unsafe-inline'", "img-src data: blob:")
    return "; ".join((*rules, "base-uri 'none'", "form-action 'none'"))


def _navigation(sections: list[Section]) -> Html:
    links = [
        tag("li", tag("a", part.title, href=f"#{part.name}", class_=None if part.missing is None else "empty"))
        for part in sections
    ]
    toggle = tag("button", "light / dark", id="theme", type="button", hidden=True)
    return tag("nav", tag("p", "traincope", class_="brand"), tag("ul", *links), toggle, aria_label="Sections")


@cache
def _packed(script: str) -> str:
    """The compressed script as base64, the same for the same script."""
    return base64.b64encode(gzip.compress(script.encode(), mtime=0)).decode()


def _asset(name: str) -> str:
    return files("traincope.report.html").joinpath(name).read_text(encoding="utf-8")
